"""Plans Ingresses, from objects to a plan. Pure."""
