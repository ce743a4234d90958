"""The Responses API as data: bodies parsed once, responses, their items and events rendered, and the store of responses."""
