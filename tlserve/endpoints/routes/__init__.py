"""One module for each route of the API."""
