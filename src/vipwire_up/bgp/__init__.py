"""Announces the addresses of Services to routers by BGP: vipwire chooses the routes, BIRD speaks the protocol."""
