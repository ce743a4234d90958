"""The link between head and nodes over HTTP, and the directories of the nodes' addresses."""
