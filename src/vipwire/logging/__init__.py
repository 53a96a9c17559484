"""The log of every command, and lines that it may write once in a while only."""
