"""Watches the objects of the Gateway API and turns their bytes into values."""
