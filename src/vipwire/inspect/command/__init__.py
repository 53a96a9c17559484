"""The options of the commands that show, and the printing of their documents."""
