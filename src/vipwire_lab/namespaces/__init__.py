"""Network namespaces, links and processes, of which a lab is made."""
