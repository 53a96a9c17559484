"""Request bodies in JSON, YAML and protobuf: parsed and checked against a type."""
