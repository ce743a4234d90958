"""Ollama's API as data: bodies parsed once, answers, lines of streams and errors rendered."""
