"""The metric catalogue, the text of /metrics, the request log, and where log lines go."""
