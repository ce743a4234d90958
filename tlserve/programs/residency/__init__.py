"""Models that are loaded on first use and leave again: who waits, what has room, and the life of one such model."""
