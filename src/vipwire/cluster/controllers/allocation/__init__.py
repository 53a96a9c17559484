"""What Services are given: cluster IPs, node ports and address families."""
