"""The programs of a Ray cluster: its control process, and a node that is an actor."""
