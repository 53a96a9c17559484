"""DNS for Services: Kubernetes' DNS specification 1.1.0 from memory, and everything else from upstream."""
