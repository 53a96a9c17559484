"""What the proxy serves over HTTP: health, metrics, health checks of Services, debugging pages."""
