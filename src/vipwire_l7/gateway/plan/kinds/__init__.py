"""The objects of the Gateway API, and who may refer to which."""
