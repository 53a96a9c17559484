"""ebpf mode: local sockets speak with endpoints directly; nftables mode's rules do all the rest."""
