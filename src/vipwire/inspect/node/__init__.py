"""The facts about this node for the commands: the plan, the rendered objects, and the kernel's objects."""
