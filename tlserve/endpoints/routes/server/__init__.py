"""The endpoints that describe the server itself: its health, its version, its load."""
