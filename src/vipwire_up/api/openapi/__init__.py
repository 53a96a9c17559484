"""The types of served objects, and the OpenAPI documents made from them."""
