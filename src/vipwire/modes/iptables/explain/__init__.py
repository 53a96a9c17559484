"""iptables mode explained: a packet's way through the rules that the kernel holds."""
