"""A call that is written as Python: `name(key="value", n=3)`.

Owns the grammar: a name, keyword arguments, and values that are literals (strings, numbers, True, False, None, lists, tuples,
dicts; also true, false and null). Nothing is executed.

Source: the Python language reference, "Literals" and "Calls"; the prompt format of Llama 3.2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

MAX_DEPTH = 64
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_CONSTANTS = {"True": True, "true": True, "False": False, "false": False, "None": None, "null": None}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "\n": "", "b": "\b", "f": "\f"}
_SPACE = " \t\n\r"


class NotPython(Exception):
    """The text is not a call with literal arguments."""


def parse_call(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments of the call that `text` is; raises NotPython."""
    parser = _Parser(text)
    found = parser.call()
    if parser.at != len(text):
        raise NotPython
    return found


class _Parser:
    """Reads a complete text from the left; `at` is the place of the next character."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._depth = 0
        self.at = 0

    def call(self) -> tuple[str, dict[str, Any]]:
        """Return the name and the arguments of the call at the beginning of the text."""
        name = self._word()
        self._take("(")
        arguments: dict[str, Any] = {}
        for key in self._items(")", self._word):
            self._take("=")
            arguments[key] = self._value()
        return name, arguments

    def _items(self, closer: str, read: Callable[[], Any]) -> Any:
        """Yield the items that `read` returns, separated by commas, up to `closer`."""
        while self._peek() != closer:
            yield read()
            if self._peek() != closer:
                self._take(",")
        self.at += 1

    def _peek(self) -> str:
        while self._text[self.at : self.at + 1] in tuple(_SPACE):
            self.at += 1
        return self._text[self.at : self.at + 1]

    def _take(self, expected: str) -> None:
        if self._peek() != expected:
            raise NotPython
        self.at += 1

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self.at)
        if found is None:
            raise NotPython
        self.at = found.end()
        return found[0]

    def _word(self) -> str:
        self._peek()
        return self._match(NAME)

    def _value(self) -> Any:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise NotPython
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
            word = self._match(NAME)
            if word not in _CONSTANTS:
                raise NotPython
            return _CONSTANTS[word]
        return json.loads(self._match(_NUMBER))

    def _pair(self) -> tuple[str, Any]:
        key = self._value()
        if not isinstance(key, str):
            raise NotPython
        self._take(":")
        return key, self._value()

    def _string(self, quote: str) -> str:
        self.at += 1
        out: list[str] = []
        while (character := self._text[self.at : self.at + 1]) != quote:
            if not character:
                raise NotPython
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
