"""Watches the objects of an Ingress controller and turns their bytes into values."""
