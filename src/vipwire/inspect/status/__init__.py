"""`vipwire status`: Services, their endpoints and shares, and whether the kernel agrees."""
