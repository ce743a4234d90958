"""The metric catalogue and the request log."""
