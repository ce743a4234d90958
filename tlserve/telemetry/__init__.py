"""The metric catalogue, the text of /metrics, the request log, traces, and the form of log lines."""
