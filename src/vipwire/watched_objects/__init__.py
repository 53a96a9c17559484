"""Holds the current state: events change the store, the planner reads it."""
