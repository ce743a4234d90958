"""Small models for tests: the successor bigram, and a seeded two-layer llama in memory or as a real GGUF file.

They are real models behind `kernels.interface.Model`, not stand-ins: whatever holds for them by contract holds for big ones.
"""

from __future__ import annotations

from tlserve.model.bigram import BigramModel, successor_table


def succ_model(context_tokens: int = 4096, vocabulary_size: int = 256) -> BigramModel:
    """Return the bigram in which token i is followed by token (i + 1) % vocabulary_size."""
    return BigramModel(successor_table(vocabulary_size, 1, 32.0), context_tokens)
