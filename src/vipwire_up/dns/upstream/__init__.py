"""Names outside the cluster's zone: asks upstream servers, and caches their answers."""
