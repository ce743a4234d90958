"""Calls that are written as Python: `[name(key="value", n=3), other()]`.

A call is given once its bracket was closed. The grammar of one call is in `python_call`. Refuses to know the markup around.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from tlserve.chat.dialect import Piece
from tlserve.chat.output.call_reader import Schemas, call_pieces
from tlserve.chat.output.python_call import NAME, Literals, NotPython
from tlserve.chat.output.region import BaseRegion

_SPACE = " \t\n\r"


class PythonicRegion(BaseRegion):
    """A list of calls; of names that `accepts` takes alone, because a list may also be an answer."""

    def __init__(self, begin: str, schemas: Schemas, accepts: Callable[[str], bool]) -> None:
        super().__init__(begin)
        self._schemas = schemas
        self._accepts = accepts
        self._started = False
        self._read = 0
        self._depth = 0
        self._quote = ""
        self._is_escaped = False

    def feed(self, text: str, pieces: list[Piece]) -> str:
        """Read calls up to the bracket that closes the list."""
        self._raw += text
        while not self.over and self._read < len(self._raw):
            self._step(self._raw[self._read], pieces)
        rest, self._raw = (self._raw, "") if self.over else ("", self._raw)
        return rest

    def finish(self, pieces: list[Piece]) -> str:
        """Give back a call that was not closed."""
        return "" if self._opened and not self._raw.strip(_SPACE + ",") else self._fail("", pieces)

    def _step(self, character: str, pieces: list[Piece]) -> None:
        self._read += 1
        if self._quote:
            self._in_string(character)
        elif not self._started:
            self._start(character, pieces)
        elif character in "'\"" and self._depth:
            self._quote = character
        elif character in "([{":
            self._depth += 1
        elif character in ")]}" and self._depth:
            self._depth -= 1
            if not self._depth:
                self._close(pieces)
        elif character == "]":
            self._end(pieces)
        elif not self._depth and not self._could_go_on():
            self._give_up(pieces)

    def _could_go_on(self) -> bool:
        """Say whether what stands between calls may still become the name of one."""
        name = self._raw[: self._read].lstrip(_SPACE + ",").rstrip(_SPACE)
        return not name or bool(NAME.fullmatch(name))

    def _in_string(self, character: str) -> None:
        if not self._is_escaped and character == self._quote:
            self._quote = ""
        self._is_escaped = character == "\\" and not self._is_escaped

    def _start(self, character: str, pieces: list[Piece]) -> None:
        if character == "[":
            self._started = True
            self._begin += self._raw[: self._read]
            self._raw, self._read = self._raw[self._read :], 0
        elif character not in _SPACE:
            self._give_up(pieces)

    def _close(self, pieces: list[Piece]) -> None:
        text = self._raw[: self._read].lstrip(_SPACE + ",")
        reader = Literals(text)
        try:
            name, arguments = reader.call()
        except NotPython:
            return self._give_up(pieces)
        if not self._accepts(name) or reader.at != len(text):
            return self._give_up(pieces)
        pieces += call_pieces(name, json.dumps(arguments, ensure_ascii=False), self._schemas)
        self._raw, self._read, self._opened = self._raw[self._read :], 0, True
        return None

    def _end(self, pieces: list[Piece]) -> None:
        if not self._opened or self._raw[: self._read - 1].strip(_SPACE + ","):
            return self._give_up(pieces)
        self._raw, self.over = self._raw[self._read :], True
        return None

    def _give_up(self, pieces: list[Piece]) -> None:
        self._raw = self._fail("", pieces)
