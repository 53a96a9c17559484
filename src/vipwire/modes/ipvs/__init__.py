"""ipvs mode: the kernel's virtual servers, with the device, the ipsets and the chains that kube-proxy gives them."""
