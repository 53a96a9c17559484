"""The shell: statuses written, versions found, every part wired."""
