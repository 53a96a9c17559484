"""ipvs mode: IPVS virtual servers, the device kube-ipvs0, ipsets and iptables chains, named as in kube-proxy."""
