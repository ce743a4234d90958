"""Structured output: what an answer must match, as data, and the masks that make it so."""
