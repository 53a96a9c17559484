"""vipwire without a cluster: an API server, its store, and the controllers and agents of Services, in one process."""
