"""Kubernetes as the proxy reads it: kinds on the wire, list and watch, manifests, Events."""
