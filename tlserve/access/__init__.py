"""Who may come in, and under what id a request is known. Pure: the clock is an argument."""
