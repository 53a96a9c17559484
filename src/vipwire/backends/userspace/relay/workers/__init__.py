"""More processes than one for the TCP connections of a relay."""
