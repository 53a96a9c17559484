"""The store on etcd: several API servers share it, and nothing is acknowledged that a majority of members lacks."""
