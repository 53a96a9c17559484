"""`vipwire explain`: what happens to a packet, by the plan and by the kernel's objects."""
