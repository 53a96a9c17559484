"""Endpoints that do not answer new connections: what conntrack tells of them, and who is told."""
