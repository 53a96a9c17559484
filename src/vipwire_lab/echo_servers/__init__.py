"""The servers in a lab's Pods: each answers with its own name and the client's address."""
