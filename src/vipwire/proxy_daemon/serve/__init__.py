"""The proxy's HTTP pages: health, metrics, health checks of Services, debugging."""
