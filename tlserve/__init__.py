"""Serve language models that fit a CPU over the OpenAI HTTP API."""

__version__ = "0.1.0"
