"""How far the answers of a model move when its numbers are rounded: the comparison behind `tlserve quality`."""
