"""Readiness probes over the network or by a command."""
