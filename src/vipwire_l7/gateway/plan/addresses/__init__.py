"""Where Gateways have their addresses from: pools, and Services of their own. Pure."""
