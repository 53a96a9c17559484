"""TLS of the Gateway API: certificates of listeners and Gateways, and the CA certificates that verify others."""
