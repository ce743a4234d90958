"""Sockets that a server listens on: TCP, Unix sockets, and TLS over them."""
