"""Explains nftables mode: a packet's way through the table in the kernel."""
