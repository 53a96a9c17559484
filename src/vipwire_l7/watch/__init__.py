"""Watches the objects that layer 7 reads and turns their bytes into values."""
