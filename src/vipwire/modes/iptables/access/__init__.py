"""Reads rules from the kernel and writes them: as the iptables tools' text, or as the kernel's structures."""
