"""Machines of a cluster: which are there, which are ready, and how a machine reads and writes objects."""
