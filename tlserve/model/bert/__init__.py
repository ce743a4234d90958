"""BERT encoders for embeddings."""
