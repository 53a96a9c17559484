"""The options of the commands that look, and the printing of their documents."""
