"""The plan in the words of HAProxy: pure, without a socket or a file."""
