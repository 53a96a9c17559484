"""Starts a process of vipwire, keeps it the only one, runs its parts, and ends it: signals, systemd, limits."""
