"""Starts and restarts the parts of `vipwire up` and `vipwire join`."""
