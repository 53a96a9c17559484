"""The table of nftables mode: its names, rules, elements and counters."""
