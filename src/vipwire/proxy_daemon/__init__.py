"""The running proxy: reads configuration and objects, programs the kernel."""
