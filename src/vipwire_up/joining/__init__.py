"""`vipwire join`, `vipwire leave`, `vipwire token`: how a machine gets, renews and gives up its credentials."""
