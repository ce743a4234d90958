"""The program that compiles clients' grammars under limits, and how a server starts it."""
