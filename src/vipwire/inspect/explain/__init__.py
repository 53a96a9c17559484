"""`vipwire explain`: the way of a packet, by the plan and by the kernel's objects."""
