"""Measure a server as its clients meet it: tokens per second, time to first token, time per token."""
