"""kube-proxy's configuration file and flags as one frozen, validated value."""
