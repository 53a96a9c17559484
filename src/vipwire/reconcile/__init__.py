"""Compares the kernel's objects with the desired ones and commits the difference as one transaction."""
