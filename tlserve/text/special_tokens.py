"""Text -> the special tokens in it, and the text between them.

Owns the search: at each place, from left to right, the longest special token wins that its writer may spell. Does not know how
other text is encoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from tlserve.errors import ModelRefused

TEMPLATE = "t"
"""The letter of a character whose writer may spell special tokens: the chat template, and the server."""

Piece = str | int
"""A run of ordinary text, or the id of a special token."""


class SpecialTokens:
    """The tokens of a vocabulary that steer the model; each is spelled by at least two characters.

    If a special token had a single character, that character could never be ordinary text: raises ModelRefused.
    """

    def __init__(self, ids: Mapping[str, int]) -> None:
        for spelling in ids:
            if len(spelling) < 2:
                raise ModelRefused(f"the vocabulary declares the single character {spelling!r} as a control token")
        self.ids = dict(sorted(ids.items(), key=lambda item: (-len(item[0]), item[0])))
        self.id_set = frozenset(ids.values())
        self._lengths = {first: _lengths(ids, first) for first in {spelling[0] for spelling in ids}}
        self._starts = re.compile("|".join(_starts(ids))) if ids else None

    def split(self, text: str, origin: str = "") -> Iterator[Piece]:
        """Yield the pieces of `text` in order, without empty runs.

        `origin` has a letter for each character: a spelling is a special token only if all its letters are TEMPLATE. Without
        letters every spelling is one.
        """
        begin = 0
        for start, end in self._spans(text, origin):
            if start > begin:
                yield text[begin:start]
            yield self.ids[text[start:end]]
            begin = end
        if begin < len(text):
            yield text[begin:]

    def _spans(self, text: str, origin: str) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each special token from left to right, the longest first, without overlaps."""
        begin = 0
        for start in self._places(text):
            end = self._longest_end(text, origin, start) if start >= begin else 0
            if end:
                yield start, end
                begin = end

    def _places(self, text: str) -> Iterator[int]:
        if self._starts is not None:
            for found in self._starts.finditer(text):
                yield found.start()

    def _longest_end(self, text: str, origin: str, start: int) -> int:
        for length in self._lengths[text[start]]:
            end = start + length
            if text[start:end] in self.ids and origin.count(TEMPLATE, start, end) == (length if origin else 0):
                return end
        return 0


def _lengths(ids: Mapping[str, int], first: str) -> tuple[int, ...]:
    return tuple(sorted({len(spelling) for spelling in ids if spelling[0] == first}, reverse=True))


def _starts(ids: Mapping[str, int]) -> Iterator[str]:
    """Yield a pattern for each first character, with the second characters that can follow it."""
    for first in sorted({spelling[0] for spelling in ids}):
        seconds = "".join(sorted({spelling[1] for spelling in ids if spelling[0] == first}))
        yield f"{re.escape(first)}(?=[{re.escape(seconds)}])"
