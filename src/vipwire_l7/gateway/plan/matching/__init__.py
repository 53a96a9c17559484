"""What routes match, and in which order HAProxy asks for it."""
