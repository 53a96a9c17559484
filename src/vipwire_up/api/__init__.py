"""The API server: declarations of kinds, a registry that validates and stores objects, and the HTTP server."""
