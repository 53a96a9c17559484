"""userspace mode: a process relays every connection; rules of iptables bring the packets for VIPs to it."""
