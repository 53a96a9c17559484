"""From events to the kernel: the engine, what follows a sync, and the reports of it."""
