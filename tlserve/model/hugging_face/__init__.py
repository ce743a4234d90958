"""Reading models from directories in Hugging Face's layout."""
