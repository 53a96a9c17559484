"""Nodes of a cluster: the Node and Lease of each machine, readiness, and access to objects."""
