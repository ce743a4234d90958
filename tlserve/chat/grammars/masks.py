"""Masks made by llguidance: the vocabulary in the library's form, a compiled grammar, the constraint of one sequence.

All calls of the library are here. Knows nothing of requests, threads, and how grammars are written. The import is slow, so
other modules import this one when they need it.

Control tokens, and tokens that steer a dialect's reader, are special to the library: no text matches them, only a rule of ours
that names one. One id after the vocabulary means "the answer can end here"; the request's own stop ids take its place.
"""

from __future__ import annotations

import random
import re
import time
from typing import Any

import attrs
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from tlserve.errors import GrammarLimitExceeded
from tlserve.text.tokenizer import SpelledTokens

_LIMITS = LLParserLimits(
    verbose_errors=False, initial_lexer_fuel=250_000, max_lexer_states=100_000, max_items_in_row=25_000
)
"""A hostile pattern is given up after tenths of a second. Rows may be longer than the library's own 2,000, which 500 optional
properties of one object fill; what long rows cost is measured when a grammar is checked."""

_IN_STRINGS = r'[^"\\\x00-\x1F\x7F]'
_SLICES = [r"[\x20\x0A\x0D\x09]+", *(f"{_IN_STRINGS}{{1,{most}}}" for most in (3, 6, 10, 15, 30)), f"{_IN_STRINGS}+"]
"""Groups of tokens that are allowed or forbidden together: blanks, and texts inside JSON strings by their length.

The lengths are for strings with a maximum length. The library's own list has 10 and 30; the shorter ones save a fifth of the
time of a mask near the end of such a string.
"""

_EXCERPT = re.compile(r"\n<|\n  while processing|\n *[0-9]+ \| ")
_REASON_CHARS = 300
_LIMIT = re.compile(r"\bmax is\b|\blimit|\bfuel\b|\btoo (?:many|large|complex)\b|\bmax_", re.IGNORECASE)
_REHEARSED_TOKENS = 64


class _LibraryVocabulary:
    """The tokens, with the names that `LLTokenizer` reads."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: SpelledTokens, size: int) -> None:
        known = range(tokenizer.vocabulary_size)
        silent = {token for token in known if not tokenizer.token_bytes(token)}
        self._tokenizer = tokenizer
        self.eos_token_id = size
        self.tokens = [*map(tokenizer.token_spelling, known), *[b""] * (size - len(known)), b"<end>"]
        self.special_token_ids = sorted({*silent, *tokenizer.special_tokens.values(), *range(len(known), size + 1)})

    def __call__(self, text: str | bytes) -> list[int]:
        return self._tokenizer.encode(text if isinstance(text, str) else text.decode(errors="replace"))


class MaskMaker:
    """Compiles grammars in the library's form for one tokenizer; `size` is the number of the model's logits."""

    def __init__(self, tokenizer: SpelledTokens, size: int) -> None:
        vocabulary: Any = _LibraryVocabulary(tokenizer, size)
        self._size = size
        self._library = LLTokenizer(vocabulary, n_vocab=size + 1, eos_token=size, slices=_SLICES)

    def make(self, text: str, stop_ids: frozenset[int]) -> LlguidanceGrammar | str:
        """Return the compiled text, or the reason why it cannot be used; a trial run finds the errors of use."""
        matcher = LLMatcher(self._library, text, log_level=0, limits=_LIMITS)
        trial = matcher.deep_copy()
        slowest_s = _rehearse(trial, self._size)
        if trial.is_error():
            return _reason(trial)
        return LlguidanceGrammar(matcher, _Layout.of(self._size, stop_ids), slowest_s)


def _rehearse(matcher: LLMatcher, size: int) -> float:
    """Run `matcher` over the beginning of one answer, always the same one; return the CPU time of the slowest mask.

    An error leaves it in its error state.
    """
    choices, slowest_s = random.Random(0), 0.0
    for _ in range(_REHEARSED_TOKENS):
        began = time.thread_time()
        mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
        slowest_s = max(slowest_s, time.thread_time() - began)
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")[:size])
        if not len(allowed) or not matcher.consume_token(int(choices.choice(allowed))):
            break
    return slowest_s


def _reason(matcher: LLMatcher) -> str:
    """Return why no token can follow, in the library's words if they help."""
    words = _EXCERPT.split(matcher.get_error(), maxsplit=1)[0].strip()
    if words.startswith("oneOf"):
        return "the alternatives of its oneOf may overlap; use anyOf, or give each alternative a different constant"
    return words[:_REASON_CHARS] or "no text matches it"


def _failure(matcher: LLMatcher) -> Exception:
    """Return what to raise for a matcher that has given up: the library stops where a token takes more work than its limits."""
    reason = _reason(matcher)
    if _LIMIT.search(reason):
        return GrammarLimitExceeded(f"the schema or grammar takes too much work for one token: {reason}")
    return RuntimeError(reason)


@attrs.frozen(eq=False)
class _Layout:
    """Where the bits of a mask are: the words of the vocabulary, the word and bit of the end, the stop ids' bits by word."""

    words: int
    all_words: int
    end_word: int
    end_bit: int
    stops: frozenset[int]
    stop_bits: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, size: int, stop_ids: frozenset[int]) -> _Layout:
        bits: dict[int, int] = {}
        for token in stop_ids:
            bits[token // 32] = bits.get(token // 32, 0) | 1 << token % 32
        return cls((size + 31) // 32, (size + 32) // 32, size // 32, 1 << size % 32, stop_ids, tuple(bits.items()))


@attrs.frozen(eq=False)
class LlguidanceGrammar:
    """A compiled grammar. Any number of constraints can be started from it; they share its caches."""

    _matcher: LLMatcher
    _layout: _Layout
    slowest_mask_s: float = 0.0

    def start(self) -> LlguidanceConstraint:
        """Return a new constraint."""
        return LlguidanceConstraint(self._matcher.deep_copy(), self._layout)


class LlguidanceConstraint:
    """The `TokenConstraint` of one sequence. The caller may keep the masks that it returns."""

    def __init__(self, matcher: LLMatcher, layout: _Layout) -> None:
        self._matcher = matcher
        self._layout = layout
        self._ended = False

    def mask(self) -> NDArray[np.uint32]:
        """Return the allowed ids; raises RuntimeError if the library gives up."""
        layout = self._layout
        words = np.empty(layout.all_words, np.uint32)
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        may_end = bool(words[layout.end_word] & layout.end_bit)
        if not may_end and self._matcher.is_error():
            raise _failure(self._matcher)
        words[layout.end_word] &= ~np.uint32(layout.end_bit)
        for word, bits in layout.stop_bits:
            words[word] = words[word] | bits if may_end else words[word] & ~np.uint32(bits)
        return words[: layout.words]

    def accept(self, token: int) -> None:
        """Advance over `token`; raises RuntimeError if the mask did not allow it."""
        if self._ended:
            raise RuntimeError("no token can follow the end of an answer")
        if token in self._layout.stops:
            self._ended = True
        elif not self._matcher.consume_token(token):
            raise _failure(self._matcher)

    def rollback(self, count: int) -> None:
        """Take back the last `count` tokens; raises RuntimeError if there are fewer."""
        if count and self._ended:
            self._ended = False
            count -= 1
        if count and not self._matcher.rollback(count):
            raise RuntimeError(self._matcher.get_error())
