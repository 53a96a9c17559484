"""DNS messages and names on the wire."""
