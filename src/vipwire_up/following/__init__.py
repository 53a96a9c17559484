"""Follows the store's changes, and reports Kubernetes Events."""
