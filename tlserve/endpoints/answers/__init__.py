"""From a parsed request to its answer, streamed or whole."""
