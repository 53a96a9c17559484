"""What an Ingress controller watches, and how its bytes become values."""
