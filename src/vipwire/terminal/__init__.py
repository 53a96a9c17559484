"""The lines, tables and errors that commands write to a terminal."""
