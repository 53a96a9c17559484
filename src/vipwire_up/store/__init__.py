"""The embedded store: every change has a revision, what is acknowledged is on the disk, and history can be watched.

It knows nothing of Kubernetes: keys, bytes and revisions only.
"""
