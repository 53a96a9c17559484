"""Linux: netlink, BPF, connection tracking, and the machine that vipwire runs on."""
