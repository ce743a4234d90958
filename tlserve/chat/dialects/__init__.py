"""The dialects, one module for each model family, and the registry that picks the dialect of a model."""
