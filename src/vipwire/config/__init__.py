"""What an operator asks for: kube-proxy's configuration file and flags as one frozen value, checked."""
