"""What a model family speaks: templates, dialects, and reading its output."""
