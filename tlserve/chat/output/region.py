"""A region of an answer: the markup of calls, from the marker that begins it to the end of its calls.

Holds what all forms of regions share. The forms are in `json_regions`, `xml_region` and `pythonic_region`.

A region that turns out to be none gives back its text: first its marker, as content, and then all the rest to be read anew, so
that a call further on is still found. A call that was opened is not taken back; what cannot belong to it any more is read anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tlserve.chat.dialect import Channel, ChannelText, Piece

MAX_HEAD_CHARS = 512


class Region(Protocol):
    """Reads one region; `over` once it has ended, and then `feed` returned what follows it."""

    over: bool

    @property
    def held(self) -> int:
        """Return the number of characters that may come back as content."""

    def feed(self, text: str, pieces: list[Piece]) -> str:
        """Add to `pieces` what `text` gives; return the text that is not the region's."""

    def finish(self, pieces: list[Piece]) -> str:
        """Add what was held of an open call; return the text that is no call."""


class BaseRegion:
    """What all regions share: `_raw` is the text since `begin`, or since the last call was opened, that may come back."""

    def __init__(self, begin: str) -> None:
        self.over = False
        self._begin = begin
        self._raw = ""
        self._opened = False

    @property
    def held(self) -> int:
        """Return the number of characters that may come back as content."""
        return len(self._raw)

    def _fail(self, rest: str, pieces: list[Piece]) -> str:
        """End the region; return what is to be read anew."""
        self.over = True
        if not self._opened and self._begin:
            pieces.append(ChannelText(Channel.CONTENT, self._begin))
        return self._raw + rest

    def _commit(self) -> None:
        """Take what was read so far for markup."""
        self._opened = True
        self._raw = ""


class EitherRegion(BaseRegion):
    """A region of one of several forms: `choose` returns it for the text so far, without blanks before it, or None."""

    def __init__(self, begin: str, choose: Callable[[str], Region | None]) -> None:
        super().__init__(begin)
        self._choose = choose
        self._inner: Region | None = None

    @property
    def held(self) -> int:
        """Return the number of characters that may come back as content."""
        return len(self._raw) if self._inner is None else self._inner.held

    def feed(self, text: str, pieces: list[Piece]) -> str:
        """Choose the form; then let it read."""
        if self._inner is None:
            text = self._raw + text
            self._inner = self._choose(text.lstrip())
        if self._inner is None:
            self._raw = text
            return ""
        rest = self._inner.feed(text, pieces)
        self.over = self._inner.over
        return rest

    def finish(self, pieces: list[Piece]) -> str:
        """Let the form finish."""
        return self._fail("", pieces) if self._inner is None else self._inner.finish(pieces)
