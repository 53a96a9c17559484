"""What is true now: events change the store, the planner reads it."""
