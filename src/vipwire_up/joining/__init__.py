"""`vipwire join`, `vipwire leave`, `vipwire token`: how a machine gets its credentials, keeps and gives them up."""
