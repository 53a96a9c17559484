"""The documents that describe the API: discovery and OpenAPI."""
