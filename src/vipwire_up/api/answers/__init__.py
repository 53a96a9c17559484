"""The form of the API server's answers: tables, metadata, discovery, health."""
