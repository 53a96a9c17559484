"""Network namespaces, links and processes of labs."""
