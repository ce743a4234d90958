"""The dialects, one module a family, and the registry in which a model finds its own."""
