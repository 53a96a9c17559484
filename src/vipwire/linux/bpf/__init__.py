"""The kernel's bpf(2): object files of programs, maps, attached programs, and their names in bpffs."""
