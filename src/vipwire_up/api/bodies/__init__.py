"""Request bodies: JSON, YAML and protobuf, decoded and held against a type."""
