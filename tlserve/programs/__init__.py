"""The programs: settings become a running server, head of a fleet, node, or control process of a Ray cluster."""
