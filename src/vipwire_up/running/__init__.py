"""The parts of a process of `vipwire up` or `vipwire join`, and what they share."""
