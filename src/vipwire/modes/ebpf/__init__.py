"""ebpf mode: programs connect local sockets directly to endpoints; nftables mode's rules serve all other clients."""
