"""One module per route: parse, generate, answer."""
