"""The programs: settings become objects, and objects become a running server, fleet head, or node."""
