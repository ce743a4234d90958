"""The only crossing between trio and the engine thread."""
