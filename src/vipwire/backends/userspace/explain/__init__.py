"""userspace mode explained: a packet's way through its rules to the relay."""
