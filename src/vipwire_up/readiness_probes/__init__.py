"""Readiness probes: asked on time, over the network or by a command."""
