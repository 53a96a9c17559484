"""userspace mode: the relay, a process, carries every connection; iptables rules lead packets for VIPs to it."""
