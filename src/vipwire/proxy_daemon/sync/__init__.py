"""From events to the kernel: the engine, the work after a sync, and its reports."""
