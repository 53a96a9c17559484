"""The command line: every command by its name, shell completion and manual pages."""
