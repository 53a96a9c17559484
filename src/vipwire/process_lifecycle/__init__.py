"""Starts a process of vipwire as the only one, runs its parts, and ends it: signals, systemd, limits."""
