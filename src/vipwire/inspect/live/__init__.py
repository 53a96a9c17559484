"""`vipwire top` and `vipwire trace`: connections as they come."""
