"""This machine: kernel, settings, addresses, OOM score."""
