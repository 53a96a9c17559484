"""Runs a command's process: log, signals, supervision, changing files, errors on a terminal."""
