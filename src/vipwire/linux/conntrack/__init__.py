"""Connection tracking: flows that a change of Services makes wrong, and their deletion."""
