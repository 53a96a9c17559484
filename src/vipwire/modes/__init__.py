"""The modes: each translates plans into objects of its part of the kernel. No mode imports another."""
