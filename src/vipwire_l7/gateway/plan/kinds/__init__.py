"""The objects of the Gateway API, and the rules for references between them."""
