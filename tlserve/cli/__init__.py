"""Command lines and exit codes."""
