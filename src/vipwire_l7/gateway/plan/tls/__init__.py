"""Certificates of the Gateway API: who shows which to whom, and who may have signed them."""
