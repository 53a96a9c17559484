"""Plans Ingresses. Pure."""
