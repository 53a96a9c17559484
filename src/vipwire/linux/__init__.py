"""Linux: netlink, BPF, connection tracking, and this machine's settings."""
