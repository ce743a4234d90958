"""Strings to token ids and back."""
