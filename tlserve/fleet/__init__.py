"""One `generation.Backend` over many engine nodes."""
