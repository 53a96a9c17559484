"""What the Ingresses mean: pure functions from objects to a plan."""
