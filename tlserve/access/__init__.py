"""Who can send requests, and the id of a request. Pure: the clock is an argument."""
