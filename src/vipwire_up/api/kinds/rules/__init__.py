"""Validates objects beyond their types, kind by kind, and warns of what may not be meant."""
