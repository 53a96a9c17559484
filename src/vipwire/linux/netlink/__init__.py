"""Netlink without I/O: encodes and decodes bytes. Only `socket` talks to the kernel."""
