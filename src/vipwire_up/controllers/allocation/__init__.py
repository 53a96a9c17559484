"""Allocates cluster IPs, node ports and address families to Services."""
