"""A lab: its nodes, Pods and clients, its objects, and probes between them."""
