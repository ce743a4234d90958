"""`tlserve pull`: fetching models into the cache."""
