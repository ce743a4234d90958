"""Decoders as data: the record of one, its weights, and the forward passes that run it."""
