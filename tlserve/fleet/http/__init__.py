"""The link between head and nodes over HTTP, and where the nodes' addresses come from."""
