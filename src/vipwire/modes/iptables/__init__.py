"""iptables mode: kube-proxy's chains and rules with kube-proxy's names, and a tree of chains that finds them."""
