"""A node of a fleet: it runs the requests that a head places on it."""
