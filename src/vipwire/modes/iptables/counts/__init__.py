"""Counts of iptables mode: reads them from its rules."""
