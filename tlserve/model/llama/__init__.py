"""Models with a llama's layers: shape, tensors, and their forward passes."""
