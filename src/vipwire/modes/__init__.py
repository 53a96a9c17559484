"""The modes: each translates plans into what its part of the kernel understands. No mode imports another."""
