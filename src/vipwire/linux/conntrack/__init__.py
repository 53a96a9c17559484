"""Connection tracking: which flows a change of Services makes wrong, and their deletion."""
