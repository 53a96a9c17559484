"""The matches of routes, and the order in which HAProxy tries them."""
