"""Changing the mode of a node: falling back, taking over from another mode, removing what that has left."""
