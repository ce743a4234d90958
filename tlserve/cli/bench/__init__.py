"""`tlserve bench`: measuring a server."""
