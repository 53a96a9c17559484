"""Reads and replaces files, and notices files that change."""
