"""A call that is written as Python: `name(key="value", n=3)`.

Owns the grammar: a name, keyword arguments, and values that are literals (strings, numbers, True, False, None, lists, tuples,
dicts; also true, false and null). Nothing is executed. The literals become JSON text directly, so a number of any size keeps its
digits; zeros before it are dropped. A set is a list. Half a surrogate pair in a string becomes U+FFFD.

Source: the Python language reference, "Literals" and "Calls"; the prompt format of Llama 3.2.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import TypeVar

MAX_DEPTH = 64
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_NUMBER = re.compile(r"-?[0-9]++(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_ZEROS = re.compile(r"\A(-?)0+(?=[0-9])")
_CONSTANTS = {"True": "true", "true": "true", "False": "false", "false": "false", "None": "null", "null": "null"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "\n": "", "b": "\b", "f": "\f"}
_SPACE = " \t\n\r"


_T = TypeVar("_T")


class NotPython(Exception):
    """The text is not a call with literal arguments."""


def parse_call(text: str) -> tuple[str, str]:
    """Return the name of the call that `text` is, and its arguments as the JSON text of an object; raises NotPython."""
    parser = _Parser(text)
    found = parser.call()
    if parser.at != len(text):
        raise NotPython
    return found


def python_json(text: str) -> str:
    """Return the JSON text of the literal that `text` is, or "" if it is none."""
    parser = _Parser(text)
    try:
        written = parser.value()
    except NotPython:
        return ""
    return written if parser.at == len(text) else ""


class _Parser:
    """Reads a complete text from the left; `at` is the place of the next character."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._depth = 0
        self.at = 0

    def call(self) -> tuple[str, str]:
        """Return the name and the arguments of the call at the beginning of the text."""
        name = self._word()
        self._take("(")
        arguments: dict[str, str] = {}
        for key in self._items(")", self._word):
            self._take("=")
            arguments[_quoted(key)] = self.value()
        return name, _object(arguments)

    def _items(self, closer: str, read: Callable[[], _T]) -> Iterator[_T]:
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

    def value(self) -> str:
        """Return the JSON text of the literal at the beginning of the text."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise NotPython
        value = self._any_value()
        self._depth -= 1
        return value

    def _any_value(self) -> str:
        character = self._peek()
        if character in ("'", '"'):
            return _quoted(self._string(character))
        if character in ("[", "("):
            self.at += 1
            return f"[{', '.join(self._items(']' if character == '[' else ')', self.value))}]"
        if character == "{":
            self.at += 1
            return self._braces()
        if character.isalpha():
            word = self._match(NAME)
            if word not in _CONSTANTS:
                raise NotPython
            return _CONSTANTS[word]
        return _ZEROS.sub(r"\1", self._match(_NUMBER))  # also a number of JSON

    def _braces(self) -> str:
        """Return the object or, for a set, the list up to the brace that closes it."""
        items = list(self._items("}", self._member))
        if items and all(value is None for _, value in items):
            return f"[{', '.join(dict.fromkeys(item for item, _ in items))}]"
        if any(value is None or key[0] != '"' for key, value in items):
            raise NotPython
        return _object({key: str(value) for key, value in items})

    def _member(self) -> tuple[str, str | None]:
        """Return a key and its value, or an item of a set and None."""
        item = self.value()
        if self._peek() != ":":
            return item, None
        self.at += 1
        return item, self.value()

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


def _object(members: dict[str, str]) -> str:
    """Return the JSON object of `members`, whose keys and values are JSON texts."""
    return f"{{{', '.join(f'{key}: {value}' for key, value in members.items())}}}"


def _quoted(text: str) -> str:
    """Return `text` as a JSON string; two escapes that make a surrogate pair become their character."""
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return json.dumps(whole, ensure_ascii=False)
