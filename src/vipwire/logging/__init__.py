"""The log of every command, and log lines with a rate limit."""
