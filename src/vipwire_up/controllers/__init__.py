"""The controllers that Services need: addresses, ports, EndpointSlices, LoadBalancer addresses, leases."""
