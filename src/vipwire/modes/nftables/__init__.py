"""nftables mode: one table with constant rules; every Service is elements of its maps."""
