"""Changing the mode of a node: fallback, takeover from another mode, removal of its leftovers."""
