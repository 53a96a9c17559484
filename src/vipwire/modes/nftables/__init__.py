"""nftables mode: constant rules in one table, every Service as elements of its maps."""
