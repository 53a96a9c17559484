"""Watches the objects that layer 7 reads and decodes them."""
