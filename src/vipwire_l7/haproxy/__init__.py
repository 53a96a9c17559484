"""Writes the plan as HAProxy's configuration and commands. Pure."""
