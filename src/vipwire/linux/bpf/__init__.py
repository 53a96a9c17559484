"""The kernel's bpf(2): object files of programs, maps, programs in force, and their names in the file system."""
