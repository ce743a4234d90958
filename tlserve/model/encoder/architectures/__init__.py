"""The architectures of encoders: a description of each, and how files store its tensors."""
