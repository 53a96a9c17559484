"""Accepts connections and requests for the API server, and limits each client."""
