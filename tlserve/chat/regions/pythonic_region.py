"""Calls that are written as Python: `[name(key="value", n=3), other()]`.

A call is passed on after its closing parenthesis. The grammar of one call is in `python_call`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tlserve.chat.dialect import Piece
from tlserve.chat.output.call_reader import Schemas, call_pieces
from tlserve.chat.regions.python_call import NAME, NotPython, parse_call
from tlserve.chat.regions.region import MAX_HEAD_CHARS, BaseRegion, Read

_SPACE = " \t\n\r"


class PythonicRegion(BaseRegion):
    """A list of calls, and `last`, which may follow it.

    `accepts` says which names are taken, because a list may also be an ordinary answer.
    """

    def __init__(self, begin: str, schemas: Schemas, accepts: Callable[[str], bool], last: str = "") -> None:
        super().__init__(begin)
        self._last = last
        self._is_closed = False
        self._schemas = schemas
        self._accepts = accepts
        self._started = False
        self._read = 0
        self._depth = 0
        self._quote = ""
        self._is_escaped = False

    def feed(self, text: str) -> Read:
        """Read calls up to the bracket that closes the list."""
        self._raw += text
        pieces: list[Piece] = []
        while not (self.over or self._is_closed) and self._read < len(self._raw):
            pieces += self._step(self._raw[self._read])
        if self._is_closed:
            self._take_last()
        if not self.over:
            return pieces, ""
        rest, self._raw = self._raw, ""
        return pieces, rest

    def finish(self) -> Read:
        """Give back a call that was not closed."""
        return ([], "") if self._is_closed or (self._opened and not self._raw.strip(_SPACE + ",")) else self._fail("")

    def _step(self, character: str) -> Sequence[Piece]:
        self._read += 1
        if self._quote:
            self._in_string(character)
        elif not self._started:
            return self._start(character)
        elif character in "'\"" and self._depth:
            self._quote = character
        elif character in "([{":
            self._depth += 1
        elif character in ")]}" and self._depth:
            self._depth -= 1
            return () if self._depth else self._close()
        elif character == "]":
            return self._end()
        elif not self._depth and not self._could_be_a_name():
            return self._give_up()
        return ()

    def _could_be_a_name(self) -> bool:
        """Say whether the text between calls may still become the name of one."""
        name = self._raw[: self._read].lstrip(_SPACE + ",").rstrip(_SPACE)
        return not name or (len(name) <= MAX_HEAD_CHARS and bool(NAME.fullmatch(name)))

    def _in_string(self, character: str) -> None:
        if not self._is_escaped and character == self._quote:
            self._quote = ""
        self._is_escaped = character == "\\" and not self._is_escaped

    def _start(self, character: str) -> Sequence[Piece]:
        if character == "[":
            self._started = True
            self._begin += self._raw[: self._read]
            self._drop()
        elif character not in _SPACE:
            return self._give_up()
        return ()

    def _close(self) -> Sequence[Piece]:
        try:
            name, arguments = parse_call(self._raw[: self._read].lstrip(_SPACE + ","))
        except NotPython:
            return self._give_up()
        if not self._accepts(name):
            return self._give_up()
        self._drop()
        self._opened = True
        return call_pieces(name, arguments, self._schemas)

    def _end(self) -> Sequence[Piece]:
        if not self._opened or self._raw[: self._read - 1].strip(_SPACE + ","):
            return self._give_up()
        self._drop()
        self._is_closed = True
        return ()

    def _take_last(self) -> None:
        """Wait for the text that may follow the list."""
        stripped = self._raw.lstrip(_SPACE)
        self.over = not self._last.startswith(stripped) or stripped == self._last
        if self.over and stripped.startswith(self._last):
            self._raw = stripped[len(self._last) :] if self._last else self._raw

    def _drop(self) -> None:
        """Forget the text that was read."""
        self._raw, self._read = self._raw[self._read :], 0

    def _give_up(self) -> Sequence[Piece]:
        pieces, self._raw = self._fail("")
        return pieces
