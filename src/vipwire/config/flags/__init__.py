"""The flags of `vipwire proxy`: their table, how a command line is read, and what `--help` prints."""
