"""The current objects: events change the store, the planner reads it."""
