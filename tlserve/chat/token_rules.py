"""Words that a request names for the sampler -> token ids: bad words, and the breakers of DRY.

Owns how a word is found in tokens: whole, inside one, or begun at the end of one and continued in the next. Does not know what
the sampler does with the ids. Reading a vocabulary takes some tens of milliseconds for each new breaker: run it in a thread.

Sources: the sampling parameters of vLLM (bad words), and src/llama-sampler.cpp of llama.cpp (breakers).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, cast

import attrs
import numpy as np

from tlserve.errors import ClientError
from tlserve.sampling_params import MOST_BREAKERS, MOST_TAIL, Breaker
from tlserve.text.tokenizer import SpelledTokens

_BETWEEN = b"\xff\xfe"  # not in any text in UTF-8


def banned_runs(tokenizer: SpelledTokens, words: Iterable[str]) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each word, and those that it has after a space if they are others.

    Raises ClientError for a word without tokens.
    """
    runs: dict[tuple[int, ...], None] = {}
    for word in words:
        plain = tuple(tokenizer.encode(word.lstrip()))
        spaced = tuple(tokenizer.encode(" " + word.lstrip()))
        if not (plain and spaced):
            raise ClientError(f"bad_words has {word!r}, which has no tokens; leave it out", param="bad_words")
        runs[plain] = None
        if len(spaced) == len(plain) and spaced[0] != plain[0]:
            runs[spaced] = None
    return tuple(runs)


def breakers_of(tokenizer: SpelledTokens, words: Iterable[str]) -> tuple[Breaker, ...]:
    """Return the breakers that the words are in the tokens of a vocabulary; raises ClientError if there are too many."""
    joined: dict[tuple[int, ...], set[int]] = {}
    for word in words:
        for tail, heads in _found(cast("Any", tokenizer), word).items():
            joined.setdefault(tail, set()).update(heads)
    if len(joined) > MOST_BREAKERS:
        raise ClientError(
            f"dry_sequence_breakers can be spelled in {len(joined)} ways, and the limit is {MOST_BREAKERS}; "
            "send fewer or shorter ones",
            param="dry_sequence_breakers",
        )
    return tuple(
        Breaker(heads=_mask(heads, tokenizer.vocabulary_size), tail=tail) for tail, heads in sorted(joined.items())
    )


def _mask(ids: Iterable[int], vocabulary_size: int) -> bytes:
    bits = np.zeros(vocabulary_size, np.uint8)
    bits[list(ids)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


@attrs.frozen(eq=False)
class _Spellings:
    """The spellings of all tokens, one after the other, and where each begins."""

    text: bytes
    starts: Sequence[int]

    def ids(self, part: bytes) -> set[int]:
        """Return the tokens in which the part is found."""
        found: set[int] = set()
        place = self.text.find(part)
        while place >= 0:
            token = bisect_right(self.starts, place) - 1
            found.add(token)
            after = self.starts[token + 1] if token + 1 < len(self.starts) else len(self.text)
            place = self.text.find(part, after)
        return found


@lru_cache(maxsize=8)
def _spellings(tokenizer: SpelledTokens) -> _Spellings:
    words = [tokenizer.token_spelling(token) + _BETWEEN for token in range(tokenizer.vocabulary_size)]
    return _Spellings(b"".join(words), [0, *accumulate(map(len, words[:-1]))])


@lru_cache(maxsize=256)
def _found(tokenizer: SpelledTokens, word: str) -> Mapping[tuple[int, ...], frozenset[int]]:
    """Return the tokens in which the word is found or begins, by the tokens that then follow."""
    spellings, raw = _spellings(cast("Any", tokenizer)), word.encode()
    whole = spellings.ids(raw)
    found: dict[tuple[int, ...], set[int]] = {(): whole} if whole else {}
    for cut in range(1, len(word)):
        heads = spellings.ids(word[:cut].encode() + _BETWEEN) - whole
        if heads:
            tail = tuple(tokenizer.encode(word[cut:]))[:MOST_TAIL]
            found.setdefault(tail, set()).update(heads)
    return {tail: frozenset(heads) for tail, heads in found.items()}
