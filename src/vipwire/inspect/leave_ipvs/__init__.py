"""`vipwire check --leave-ipvs`: what will be otherwise on this node when it leaves kube-proxy's ipvs mode."""
