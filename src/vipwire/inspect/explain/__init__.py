"""`vipwire explain`: what becomes of a packet, by the plan and by the kernel's objects."""
