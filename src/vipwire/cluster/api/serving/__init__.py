"""How the API server takes connections and requests, and how much of anything one client may have."""
