"""LoadBalancer addresses that move: which machine has which, who takes over, and what it tells its neighbours."""
