"""The store on etcd, which several API servers share: a write is acknowledged once a majority of members has it."""
