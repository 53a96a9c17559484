"""iptables mode: kube-proxy's own chains and rules, name for name, found through a tree of chains."""
