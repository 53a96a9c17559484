"""Watches the objects of the Gateway API and decodes them."""
