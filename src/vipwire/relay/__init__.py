"""The relay: the process that carries the connections of userspace mode, and the datagrams of UDPRoutes."""
