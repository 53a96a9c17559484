"""The store, in SQLite or etcd: each change has a revision, is on disk once acknowledged, and can be watched.

The store knows nothing of Kubernetes: keys, bytes and revisions only.
"""
