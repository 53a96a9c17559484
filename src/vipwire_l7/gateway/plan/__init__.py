"""Plans Gateways and routes: the configuration of HAProxy, and the statuses of the objects."""
