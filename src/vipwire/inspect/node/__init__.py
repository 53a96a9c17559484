"""The node as commands see it: the plan, the rendered objects, and those in the kernel."""
