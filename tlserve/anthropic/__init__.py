"""The Messages API as data: bodies parsed once, messages, events and errors rendered."""
