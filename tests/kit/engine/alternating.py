"""A constraint with a state (even ids, then odd ids, and so on), and the compiler of its grammar."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tlserve.generation import Grammar

ALTERNATING = Grammar("alternating")


class Alternating:
    """Keeps its accepted tokens; refuses a token that its mask did not allow, and fails after `fail_at` tokens."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.accepted: list[int] = []
        self.fail_at = fail_at

    def mask(self) -> NDArray[np.uint32]:
        if len(self.accepted) == self.fail_at:
            raise RuntimeError("broken grammar")
        bits = np.zeros(64, dtype=np.uint8)
        bits[len(self.accepted) % 2 :: 2] = 1
        return np.packbits(bits, bitorder="little").view(np.uint32)

    def accept(self, token: int) -> None:
        assert token % 2 == len(self.accepted) % 2
        self.accepted.append(token)

    def rollback(self, count: int) -> None:
        del self.accepted[-count:]


class AlternatingCompiler:
    """A `GrammarCompiler` that knows one grammar."""

    def compile(self, grammar: Grammar, stop_ids: frozenset[int]) -> Alternating:
        assert grammar == ALTERNATING
        return Alternating()
