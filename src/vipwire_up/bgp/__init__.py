"""Announces the addresses of Services to routers by BGP: which routes is decided here, BIRD speaks the protocol."""
