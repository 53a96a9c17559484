"""The API server: declarations of kinds, a registry that holds to them, and HTTP around it."""
