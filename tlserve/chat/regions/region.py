"""A region of an answer: the markup of calls, from the marker that begins it to the end of its calls.

Holds what all forms of regions share. The forms are in `json_regions`, `tag_region`, `pythonic_region` and `brace_region`.

A region may turn out not to be one. Then it gives back its text: its marker is content, and the rest is read again, so that a
call further on is still found. A call that was opened is not taken back; the text that cannot belong to it is read again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from tlserve.chat.dialect import Channel, ChannelText, Piece

MAX_HEAD_CHARS = 512
"""The longest text in which the name of a call is looked for."""

Read = tuple[list[Piece], str]
"""The pieces that were read, and the text that is left for the next reader."""


class Region(Protocol):
    """Reads one region; `over` once it has ended."""

    over: bool

    @property
    def held(self) -> int:
        """Return the number of characters that may come back as content."""

    def feed(self, text: str) -> Read:
        """Return the pieces that `text` completes, and the text that does not belong to the region."""

    def finish(self) -> Read:
        """Return the pieces that are held of an open call, and the text that is not a call."""


class BaseRegion:
    """The state of every region: `_raw` is the text that may come back, since `begin` or since the last call was opened."""

    def __init__(self, begin: str) -> None:
        self.over = False
        self._begin = begin
        self._raw = ""
        self._opened = False

    @property
    def held(self) -> int:
        """Return the number of characters that may come back as content."""
        return len(self._raw)

    def _fail(self, rest: str) -> Read:
        """End the region; the text that is held is read again, before `rest`."""
        self.over = True
        begin: list[Piece] = [ChannelText(Channel.CONTENT, self._begin)] if self._begin and not self._opened else []
        return begin, self._raw + rest

    def _commit(self) -> None:
        """Take the text so far as markup, which does not come back."""
        self._opened = True
        self._raw = ""


class EitherRegion(BaseRegion):
    """A region of one of several forms.

    `choose` is given the text so far, without leading blanks. It returns the region to use, or None while that is open.
    """

    def __init__(self, begin: str, choose: Callable[[str], Region | None]) -> None:
        super().__init__(begin)
        self._choose = choose
        self._inner: Region | None = None

    @property
    def held(self) -> int:
        """Return the number of characters that may come back as content."""
        return len(self._raw) if self._inner is None else self._inner.held

    def feed(self, text: str) -> Read:
        """Choose the form, then let it read."""
        if self._inner is None:
            text = self._raw + text
            self._inner = self._choose(text.lstrip())
        if self._inner is None:
            self._raw = text
            return [], ""
        read = self._inner.feed(text)
        self.over = self._inner.over
        return read

    def finish(self) -> Read:
        """Let the chosen form finish."""
        return self._fail("") if self._inner is None else self._inner.finish()
