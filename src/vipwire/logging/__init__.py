"""The log of every command."""
