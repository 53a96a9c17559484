"""kube-proxy's configuration file and flags as one frozen value, checked."""
