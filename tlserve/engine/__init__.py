"""Token ids in, token ids out: synchronous, on one thread, without trio."""
