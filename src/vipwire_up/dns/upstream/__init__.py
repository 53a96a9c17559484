"""Names that are not the cluster's: other servers are asked, and their answers kept for as long as they are valid."""
