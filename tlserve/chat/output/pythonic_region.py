"""Calls that are written as Python: `[name(key="value", n=3), other()]`.

Owns the grammar: names, keyword arguments, and values that are literals (strings, numbers, True, False, None, lists, tuples,
mappings; JSON's three names too). Nothing is run. A call is given once its bracket was closed. Refuses to know the markup around.

Source: the Python language reference, "Literals" and "Calls"; the prompt format of Llama 3.2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from tlserve.chat.dialect import Piece
from tlserve.chat.output.call_reader import Schemas, call_pieces
from tlserve.chat.output.regions import BaseRegion

MAX_DEPTH = 64
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_CONSTANTS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "\n": "", "b": "\b", "f": "\f"}
_SPACE = " \t\n\r"


class _NotPython(Exception):
    """The text is not a call with literal arguments."""


class _Literals:
    """Reads a complete text from the left; `at` is the place of the next character."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._depth = 0
        self.at = 0

    def call(self) -> tuple[str, dict[str, Any]]:
        """Return the name and the arguments of the call that the text is."""
        name = self._word()
        self._take("(")
        arguments: dict[str, Any] = {}
        for key in self._items(")", self._word):
            self._take("=")
            arguments[key] = self._value()
        return name, arguments

    def _items(self, closer: str, first: Callable[[], Any]) -> Any:
        """Yield what `first` reads, item for item, up to `closer`."""
        while self._peek() != closer:
            yield first()
            if self._peek() != closer:
                self._take(",")
        self.at += 1

    def _peek(self) -> str:
        while self._text[self.at : self.at + 1] in tuple(_SPACE):
            self.at += 1
        return self._text[self.at : self.at + 1]

    def _take(self, wanted: str) -> None:
        if self._peek() != wanted:
            raise _NotPython
        self.at += 1

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self.at)
        if found is None:
            raise _NotPython
        self.at = found.end()
        return found[0]

    def _word(self) -> str:
        self._peek()
        return self._match(_NAME)

    def _value(self) -> Any:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _NotPython
        value = self._any_value()
        self._depth -= 1
        return value

    def _any_value(self) -> Any:
        character = self._peek()
        if character in ("'", '"'):
            return self._string(character)
        if character in ("[", "("):
            self.at += 1
            return list(self._items("]" if character == "[" else ")", self._value))
        if character == "{":
            self.at += 1
            return dict(self._items("}", self._pair))
        if character.isalpha():
            word = self._match(_NAME)
            if word not in _CONSTANTS:
                raise _NotPython
            return _CONSTANTS[word]
        return json.loads(self._match(_NUMBER))

    def _pair(self) -> tuple[str, Any]:
        key = self._value()
        if not isinstance(key, str):
            raise _NotPython
        self._take(":")
        return key, self._value()

    def _string(self, quote: str) -> str:
        self.at += 1
        out: list[str] = []
        while (character := self._text[self.at : self.at + 1]) != quote:
            if not character:
                raise _NotPython
            self.at += 1
            out.append(self._escape() if character == "\\" else character)
        self.at += 1
        return "".join(out)

    def _escape(self) -> str:
        character = self._text[self.at : self.at + 1]
        if character in ("u", "x"):
            digits = self._text[self.at + 1 : self.at + (5 if character == "u" else 3)]
            if re.fullmatch(r"[0-9a-fA-F]{4}" if character == "u" else r"[0-9a-fA-F]{2}", digits):
                self.at += 1 + len(digits)
                return chr(int(digits, 16))
        if character not in _ESCAPES:
            return "\\"
        self.at += 1
        return _ESCAPES[character]


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
        return not name or bool(_NAME.fullmatch(name))

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
        reader = _Literals(text)
        try:
            name, arguments = reader.call()
        except _NotPython:
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
