"""DRY: which tokens would continue a repetition, and how long it is.

Owns the tokens of one sequence, and for each place the length of the match: how many tokens before the place equal the last
tokens of the sequence. Knows nothing of logits. All of it follows from the tokens alone; a token costs time in proportion to the
tokens that are searched, without a loop in Python.

The next token at a place that the match reaches would continue the repetition, so it is the one that loses logit. A match goes no
further back than the latest breaker, or the beginning of the tokens that are searched.

Source: `llama_sampler_dry_apply` of llama.cpp; its algorithm is one pass over all tokens for each token.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tlserve.sampling_params import Breaker, Dry

Ids = NDArray[np.int32]
Places = NDArray[np.intp]

_SPARE = 1024
_MOST_EXPONENT = 88.7228391  # llama.cpp: the logarithm of the largest float32
_LEAST_BASE = 1.000001  # llama.cpp: from here on exponents are bounded


class Repetition:
    """The tokens of a sequence so far: `see` adds one."""

    def __init__(self, dry: Dry, tokens: Sequence[int]) -> None:
        self._dry = dry
        self._breakers = tuple(_ReadBreaker(breaker) for breaker in dry.breakers)
        self._tokens: Ids = np.empty(len(tokens) + _SPARE, np.int32)
        self._tokens[: len(tokens)] = tokens
        self._size = len(tokens)
        self._matches = np.zeros(len(tokens) + _SPARE, np.int32)
        start = self._start
        self._matches[start : self._size] = match_lengths(tuple(tokens[start:]))
        self._latest = max((b.latest(self._tokens[start : self._size], start) for b in self._breakers), default=(-1, 0))

    @property
    def _start(self) -> int:
        """The first place that is searched."""
        return 0 if self._dry.last_n is None else max(0, self._size - self._dry.last_n)

    def see(self, token: int) -> None:
        """Add a token."""
        if self._size == len(self._tokens):
            self._tokens = np.concatenate([self._tokens, np.empty(self._size, np.int32)])
            self._matches = np.concatenate([self._matches, np.zeros(self._size, np.int32)])
        start, end = self._start, self._size
        grown = self._matches[start:end] + 1
        grown *= self._tokens[start:end] == token
        self._matches[start + 1 : end + 1] = grown
        self._matches[start] = 0
        self._tokens[end] = token
        self._size += 1
        self._note_breakers(start)

    def _note_breakers(self, start: int) -> None:
        """Look for breakers that end with the last token."""
        reach = max((len(breaker.tail) for breaker in self._dry.breakers), default=-1) + 1
        tokens = tuple(self._tokens[max(start, self._size - reach) : self._size].tolist())
        for breaker in self._dry.breakers:
            tail = len(breaker.tail)
            if (
                len(tokens) > tail
                and tokens[len(tokens) - tail :] == breaker.tail
                and _has(breaker.heads, tokens[-1 - tail])
            ):
                self._latest = max(self._latest, (self._size - 1 - tail, tail))

    def penalties(self) -> tuple[Ids, NDArray[np.float64]]:
        """Return the ids that would continue a repetition, ascending, and what each loses."""
        start, dry = self._start, self._dry
        first, tail = self._latest
        limit = self._size - start if first < start else self._size - (first + tail + 1)
        if limit < dry.allowed_length:
            return np.empty(0, np.int32), np.empty(0)
        reach = np.arange(1, self._size - start)
        lengths = np.minimum(np.minimum(self._matches[start + 1 : self._size], reach), limit)
        long = np.flatnonzero(lengths >= dry.allowed_length)
        ids, longest = _longest_of_each(self._tokens[start + 1 : self._size][long], lengths[long])
        kept = ~np.logical_or.reduce([b.alone(ids) for b in self._breakers], axis=0) if self._breakers else slice(None)
        return ids[kept], _lost(longest[kept], dry)


def _longest_of_each(ids: Ids, lengths: NDArray[np.int64]) -> tuple[Ids, NDArray[np.int64]]:
    """Return each id once, ascending, and the greatest of its lengths."""
    keys = ids.astype(np.int64) << 32 | lengths
    keys.sort()
    ids = (keys >> 32).astype(np.int32)
    last = np.flatnonzero(np.append(ids[1:] != ids[:-1], [True] * min(1, len(ids))))
    return ids[last], keys[last] & 0xFFFFFFFF


def _lost(lengths: NDArray[np.int64], dry: Dry) -> NDArray[np.float64]:
    """Return what a token loses that would continue a repetition of each of `lengths`."""
    exponents = lengths - dry.allowed_length
    if dry.base > _LEAST_BASE:
        exponents = np.minimum(exponents, int(_MOST_EXPONENT / float(np.log(dry.base))))
    lost = {int(n): min(dry.multiplier * _power(dry.base, int(n)), _MOST_LOST) for n in np.unique(exponents)}
    return np.array([lost[int(n)] for n in exponents], np.float64)


_MOST_LOST = 1e30  # a logit stays finite


def _power(base: float, exponent: int) -> float:
    """Return base to the power of `exponent`, by squaring: the C library's result depends on the machine."""
    result = 1.0
    while exponent:
        if exponent & 1:
            result *= base
        base *= base if exponent > 1 else 1.0
        exponent >>= 1
    return result


@lru_cache(maxsize=4)  # the choices of one prompt come one after the other
def match_lengths(tokens: tuple[int, ...]) -> tuple[int, ...]:
    """Return for each place how many tokens before it equal the last tokens; the Z-algorithm, from the end."""
    size, last = len(tokens), len(tokens) - 1
    lengths = [0] * size
    left = right = 0  # the match that reaches furthest: of the reversed tokens from `left` on, up to `right`
    for k in range(1, size):
        n = min(lengths[k - left], right - k) if k < right else 0
        while k + n < size and tokens[last - n] == tokens[last - k - n]:
            n += 1
        lengths[k] = n
        if k + n > right:
            left, right = k, k + n
    return (0, *lengths[:0:-1]) if size else ()


def _has(heads: bytes, token: int) -> bool:
    return token // 8 < len(heads) and bool(heads[token // 8] >> token % 8 & 1)


class _ReadBreaker:
    """A breaker, ready for many tokens."""

    def __init__(self, breaker: Breaker) -> None:
        self._heads = np.frombuffer(breaker.heads, np.uint8)
        self._tail = breaker.tail

    def _begins(self, tokens: Ids) -> NDArray[np.bool_]:
        """Return which of the tokens are heads."""
        inside = tokens < 8 * len(self._heads)
        found = np.zeros(len(tokens), bool)
        known = tokens[inside]
        found[inside] = (self._heads[known >> 3] >> (known & 7).astype(np.uint8)) & 1
        return found

    def alone(self, ids: Ids) -> NDArray[np.bool_]:
        """Return which of the ids are breakers by themselves."""
        return np.zeros(len(ids), bool) if self._tail else self._begins(ids)

    def latest(self, tokens: Ids, start: int) -> tuple[int, int]:
        """Return the place of the head of the latest one in `tokens`, which begin at `start`, and the length of its tail."""
        places = np.flatnonzero(self._begins(tokens[: max(0, len(tokens) - len(self._tail))]))
        for i, token in enumerate(self._tail):
            places = places[tokens[places + 1 + i] == token]
        return (start + int(places[-1]), len(self._tail)) if len(places) else (-1, 0)
