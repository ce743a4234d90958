"""Chat templates: rendering a conversation to a prompt, in a sandbox."""
