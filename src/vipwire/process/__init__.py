"""What every long-running command needs of its process: a log, signals, files that change, garbage collection."""
