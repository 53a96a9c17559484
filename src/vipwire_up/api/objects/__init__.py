"""Objects as the API server keeps them: names, types, encoding, errors."""
