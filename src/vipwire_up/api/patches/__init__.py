"""The kinds of PATCH: JSON, merge, strategic merge and server-side apply. Pure."""
