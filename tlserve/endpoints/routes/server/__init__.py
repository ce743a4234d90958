"""The endpoints that describe the server itself and its models: health, version, load, properties."""
