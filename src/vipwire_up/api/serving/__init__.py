"""Takes connections and requests for the API server, and limits what one client may use."""
