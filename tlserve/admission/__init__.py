"""The limit of requests inside at once, and the time after which a retry makes sense."""
