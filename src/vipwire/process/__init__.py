"""What every command needs of its process: log, signals, supervision, changing files, errors on a terminal."""
