"""The command line: every command by its name, and shell completion."""
