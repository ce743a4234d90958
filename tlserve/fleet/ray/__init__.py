"""The link between head and nodes over Ray, and the processes of a Ray cluster."""
