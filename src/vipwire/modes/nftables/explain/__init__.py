"""nftables mode explained: a packet's way through the table that the kernel holds."""
