"""The architectures that are served, each a description: how the facts of a file become a decoder's record."""
