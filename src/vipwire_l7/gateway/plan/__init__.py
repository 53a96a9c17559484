"""Plans Gateways and routes: what HAProxy shall serve, and what their statuses say."""
