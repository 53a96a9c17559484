"""Starts and restarts the parts of `vipwire up` and `vipwire join`, and has what all of them share."""
