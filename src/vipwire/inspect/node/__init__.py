"""What the commands know of this node: the plan, the rendered objects, and the kernel's objects."""
