"""Marks in the users' strings, so that no text of a user can become a control token.

Owns the places of the marks, and the choice of the mark character. After rendering, a spelling of a special token without a mark
inside can only come from the template; `Tokenizer.encode_with_specials` splits there and drops the marks.

A template can see the marks, so a string gets them only where they are needed:
- inside each spelling of a special token;
- at an end that could begin or finish one across a join, and next to a string that could be the middle of one. The text without
  surrounding whitespace has such ends as well, because templates trim.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from tlserve.errors import ClientError
from tlserve.text.special_tokens import SpecialTokens

_PRIVATE_USE = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE), range(0x100000, 0x10FFFE))
_SEPARATOR = "\uffff"


def choose_mark(strings: Iterable[str]) -> str:
    """Return a private-use character that is in none of `strings`; raises ClientError if there is none."""
    used = set().union(*strings)
    for code_points in _PRIVATE_USE:
        for code_point in code_points:
            if chr(code_point) not in used:
                return chr(code_point)
    raise ClientError("the messages use every private-use character of Unicode", param="messages")


class Marker:
    """Finds the places of marks for one set of special tokens. Made once for a vocabulary: see `marker_for`."""

    def __init__(self, spellings: Iterable[str]) -> None:
        spelled = list(spellings)
        self._tokens = SpecialTokens({spelling: number for number, spelling in enumerate(spelled)})
        self._heads = {spelling[:length] for spelling in spelled for length in range(1, len(spelling))}
        self._tails = {spelling[-length:] for spelling in spelled for length in range(1, len(spelling))}
        self._joined = _SEPARATOR.join(spelled)

    def places(self, text: str) -> list[int]:
        """Return the places in order; the place `p` is before the character at index p."""
        places = set(self._inside(text))
        end = len(text.rstrip())
        begin = len(text) - len(text.lstrip())
        for first, last in {(0, len(text)), (begin, end), (begin, len(text)), (0, end)}:
            places.update(self._at_ends(text[first:last], first, last))
        return sorted(places)

    def _inside(self, text: str) -> Iterator[int]:
        """Yield places so that every spelling has one inside: the last one inside the spelling that ends first, and so on."""
        place = 0
        for start, end in sorted(self._tokens.occurrences(text), key=lambda span: span[1]):
            if not start < place < end:
                place = end - 1
                yield place

    def _at_ends(self, text: str, first: int, last: int) -> Iterator[int]:
        longest = range(1, min(len(text), self._tokens.longest) + 1)
        if any(text[:length] in self._tails for length in longest):
            yield first
        if any(text[-length:] in self._heads for length in longest) or (text and text in self._joined):
            yield last


@functools.lru_cache(maxsize=8)
def marker_for(spellings: frozenset[str]) -> Marker:
    """Return the marker for a set of special tokens."""
    return Marker(sorted(spellings))


def insert_marks(text: str, places: Sequence[int], mark: str) -> str:
    """Return `text` with `mark` at each of `places`, which must be in order."""
    bounds = [0, *places, len(text)]
    return mark.join(text[start:end] for start, end in pairwise(bounds))
