"""LoadBalancer addresses that move between nodes: which node announces each, takeover, ARP and NDP."""
