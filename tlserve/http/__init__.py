"""An HTTP/1.1 server over trio and h11; knows bytes and requests, and nothing of language models."""
