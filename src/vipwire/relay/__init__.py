"""The relay: the process that carries every connection of userspace mode."""
