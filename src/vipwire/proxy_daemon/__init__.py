"""The running proxy: configuration and objects in, a programmed kernel out."""
