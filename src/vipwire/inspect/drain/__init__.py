"""`vipwire drain`: takes an endpoint out of the choice on this node."""
