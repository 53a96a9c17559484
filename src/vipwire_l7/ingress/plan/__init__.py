"""Plans Ingresses: pure functions from objects to a plan."""
