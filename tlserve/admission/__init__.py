"""How many requests may be inside at once, and when it is worth trying again."""
