"""Weights, and the forward pass over them."""
