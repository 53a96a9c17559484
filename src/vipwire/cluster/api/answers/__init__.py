"""What the API server answers besides bare objects: tables, discovery, reviews and pages."""
