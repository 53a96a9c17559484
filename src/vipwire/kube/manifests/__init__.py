"""Manifest files as a source of events."""
