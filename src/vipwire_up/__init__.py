"""vipwire without a cluster: an API server with its store, and what Services need around it, in one process."""
