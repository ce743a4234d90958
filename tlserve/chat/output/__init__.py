"""From the model's text to answers: channels, tool calls, and their arguments."""
