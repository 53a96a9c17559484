"""What HAProxy is to serve, as values, and what Ingresses and Gateways share in planning it. Pure."""
