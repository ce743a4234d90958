"""The KV cache as blocks: the pool, the tables of sequences, and the prefix cache."""
