"""The API server's answers besides bare objects: tables, discovery, reviews and pages."""
