"""The plan for HAProxy as values, and the parts of planning that Ingresses and Gateways share. Pure."""
