"""The controllers of Services: addresses, ports, EndpointSlices, LoadBalancer addresses, Leases."""
