"""The store, in SQLite or etcd: each change has a revision, is on the disk once acknowledged, and can be watched.

It knows nothing of Kubernetes: keys, bytes and revisions only.
"""
