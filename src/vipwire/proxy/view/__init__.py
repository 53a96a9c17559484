"""For `vipwire view`: the changes that the proxy writes down, and the process that serves the page beside it."""
