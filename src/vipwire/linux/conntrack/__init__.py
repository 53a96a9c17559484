"""Connection tracking: which flows a change of Services makes wrong, their deletion, and the table's own settings."""
