"""DNS for Services: Kubernetes' DNS specification 1.1.0 from memory, all other names from upstream servers."""
