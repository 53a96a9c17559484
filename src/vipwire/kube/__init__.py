"""Reads Kubernetes objects for the proxy: wire format, list and watch, manifests, Events."""
