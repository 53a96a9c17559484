"""Reads and changes this machine: kernel, settings, addresses, OOM score. The rest of vipwire asks here."""
