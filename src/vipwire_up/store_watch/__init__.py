"""Gives the store's changes to controllers and to the proxy, and writes Kubernetes Events."""
