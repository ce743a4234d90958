"""Reading models from GGUF files."""
