"""Netlink, sans I/O: bytes in, values out, and back. Only `socket` touches the kernel."""
