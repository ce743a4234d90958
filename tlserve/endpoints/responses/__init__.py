"""Responses that are kept and answered in the background: what is more than the answer of one request."""
