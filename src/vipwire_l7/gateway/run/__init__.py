"""The shell of `vipwire gateway`: writes statuses, discovers API versions, wires the parts."""
