"""JSON that is still being written, followed character by character.

Owns where a value ends, and where text stops being JSON. `ValueScanner` follows one value; `ObjectReader` an
object, and tells its keys and values apart. What they give does not depend on how the text was cut. Refuses to know what a
value is for.

One leniency, because models write so: a control character inside a string, which JSON forbids, comes out as its escape. It
loses nothing. Source: RFC 8259.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Callable

import attrs

MAX_DEPTH = 200
_SPACE = frozenset(" \t\n\r")
_PLAIN = re.compile(r'[^"\\\x00-\x1f]*')
_TOKEN = re.compile(r"[-+.0-9A-Za-z]*")
_LITERAL = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?|true|false|null")
_ESCAPED = frozenset('"\\/bfnrt')
_HEX = frozenset("0123456789abcdefABCDEF")
_CLOSERS = {"{": "}", "[": "]"}


class JsonFault(Exception):
    """What was read is not JSON; `at` is the first character that cannot belong to it."""

    def __init__(self, at: int) -> None:
        super().__init__(f"not JSON at {at}")
        self.at = at


class ValueScanner:
    """Follows one value; `complete` once its last character was read.

    A number or a name ends with the character after it, which is not read.
    """

    def __init__(self) -> None:
        self.complete = False
        self._open: list[str] = []
        self._step: Callable[[str, int], int] = self._value
        self._is_key = False
        self._token = ""
        self._digits = 0
        self._out: list[str] = []

    def read(self, text: str, at: int = 0) -> tuple[str, int]:
        """Return the value's text from `at` on, and the place behind it; raises JsonFault."""
        while at < len(text) and not self.complete:
            at = self._step(text, at)
        out = "".join(self._out)
        self._out.clear()
        return out, at

    def _take(self, text: str, at: int, step: Callable[[str, int], int]) -> int:
        self._out.append(text[at])
        self._step = step
        return at + 1

    def _value(self, text: str, at: int) -> int:
        character = text[at]
        if character in _SPACE:
            return self._take(text, at, self._step)
        if character == '"':
            self._is_key = False
            return self._take(text, at, self._string)
        if character in _CLOSERS:
            return self._push(text, at)
        if not _TOKEN.fullmatch(character):
            raise JsonFault(at)
        self._step = self._bare
        return at

    def _push(self, text: str, at: int) -> int:
        if len(self._open) == MAX_DEPTH:
            raise JsonFault(at)
        self._open.append(text[at])
        return self._take(text, at, self._first_key if text[at] == "{" else self._first_value)

    def _first_value(self, text: str, at: int) -> int:
        return self._close(text, at) if text[at] == "]" else self._value(text, at)

    def _first_key(self, text: str, at: int) -> int:
        return self._close(text, at) if text[at] == "}" else self._key(text, at)

    def _key(self, text: str, at: int) -> int:
        if text[at] in _SPACE:
            return self._take(text, at, self._step)
        self._is_key = True
        return self._expect(text, at, '"', self._string)

    def _colon(self, text: str, at: int) -> int:
        return self._expect(text, at, ":", self._value)

    def _expect(self, text: str, at: int, wanted: str, step: Callable[[str, int], int]) -> int:
        if text[at] in _SPACE:
            return self._take(text, at, self._step)
        if text[at] != wanted:
            raise JsonFault(at)
        return self._take(text, at, step)

    def _more(self, text: str, at: int) -> int:
        """Read what follows a member: the next one, or the end of what holds it."""
        if text[at] == _CLOSERS[self._open[-1]]:
            return self._close(text, at)
        return self._expect(text, at, ",", self._key if self._open[-1] == "{" else self._value)

    def _close(self, text: str, at: int) -> int:
        self._open.pop()
        at = self._take(text, at, self._more)
        self._ended()
        return at

    def _ended(self) -> None:
        self._step = self._more
        self.complete = not self._open

    def _string(self, text: str, at: int) -> int:
        end = _PLAIN.match(text, at).end()  # type: ignore[union-attr]
        self._out.append(text[at:end])
        if end == len(text):
            return end
        if text[end] == "\\":
            return self._take(text, end, self._escape)
        if text[end] != '"':
            self._out.append(json.dumps(text[end])[1:-1])
            return end + 1
        self._out.append('"')
        if self._is_key:
            self._step = self._colon
        else:
            self._ended()
        return end + 1

    def _escape(self, text: str, at: int) -> int:
        if text[at] == "u":
            self._digits = 4
            return self._take(text, at, self._unicode)
        if text[at] not in _ESCAPED:
            raise JsonFault(at)
        return self._take(text, at, self._string)

    def _unicode(self, text: str, at: int) -> int:
        if text[at] not in _HEX:
            raise JsonFault(at)
        self._digits -= 1
        return self._take(text, at, self._unicode if self._digits else self._string)

    def _bare(self, text: str, at: int) -> int:
        """Read a number, or one of JSON's three names."""
        end = _TOKEN.match(text, at).end()  # type: ignore[union-attr]
        self._token += text[at:end]
        self._out.append(text[at:end])
        if end < len(text):
            if not _LITERAL.fullmatch(self._token):
                raise JsonFault(end)
            self._token = ""
            self._ended()
        return end


class Part(enum.Enum):
    """What a piece of an object's text is: `FRAME` stands around keys and values; `END` follows a value's last piece."""

    FRAME = "frame"
    KEY = "key"
    VALUE = "value"
    END = "end"


@attrs.frozen
class ObjectPart:
    """A piece of an object. A key is decoded, and its text as it was written is in the frame after it."""

    part: Part
    text: str = ""


class ObjectReader:
    """Follows one object. Frames and values, joined, are its text; `complete` once its brace was closed."""

    def __init__(self) -> None:
        self.complete = False
        self._step: Callable[[str, int], int] = self._begin
        self._scanner = ValueScanner()
        self._key = ""
        self._parts: list[ObjectPart] = []

    def read(self, text: str, at: int = 0) -> tuple[list[ObjectPart], int]:
        """Return the parts from `at` on, and the place behind them; raises JsonFault (see `taken`)."""
        while at < len(text) and not self.complete:
            at = self._step(text, at)
        return self.taken(), at

    def taken(self) -> list[ObjectPart]:
        """Return the parts that no call has returned yet: after a fault, those before it."""
        parts, self._parts = self._parts, []
        return parts

    def _frame(self, text: str, step: Callable[[str, int], int]) -> None:
        self._parts.append(ObjectPart(Part.FRAME, text))
        self._step = step

    def _punctuation(self, text: str, at: int, steps: dict[str, Callable[[str, int], int]]) -> int:
        if text[at] not in _SPACE and text[at] not in steps:
            raise JsonFault(at)
        self._frame(text[at], steps.get(text[at], self._step))
        return at + 1

    def _begin(self, text: str, at: int) -> int:
        return self._punctuation(text, at, {"{": self._first_key})

    def _first_key(self, text: str, at: int) -> int:
        return self._end(text, at) if text[at] == "}" else self._next_key(text, at)

    def _next_key(self, text: str, at: int) -> int:
        if text[at] != '"':
            return self._punctuation(text, at, {})
        self._scanner, self._key, self._step = ValueScanner(), "", self._in_key
        return at

    def _in_key(self, text: str, at: int) -> int:
        piece, at = self._scanner.read(text, at)
        self._key += piece
        if self._scanner.complete:
            self._parts.append(ObjectPart(Part.KEY, json.loads(self._key)))
            self._frame(self._key, self._colon)
        return at

    def _colon(self, text: str, at: int) -> int:
        return self._punctuation(text, at, {":": self._before_value})

    def _before_value(self, text: str, at: int) -> int:
        if text[at] in _SPACE:
            return self._punctuation(text, at, {})
        self._scanner, self._step = ValueScanner(), self._in_value
        return at

    def _in_value(self, text: str, at: int) -> int:
        try:
            piece, at = self._scanner.read(text, at)
        except JsonFault:
            self._parts.append(ObjectPart(Part.VALUE, self._scanner.read("")[0]))
            raise
        if piece:
            self._parts.append(ObjectPart(Part.VALUE, piece))
        if self._scanner.complete:
            self._parts.append(ObjectPart(Part.END))
            self._step = self._more
        return at

    def _more(self, text: str, at: int) -> int:
        return self._end(text, at) if text[at] == "}" else self._punctuation(text, at, {",": self._next_key})

    def _end(self, text: str, at: int) -> int:
        self._frame(text[at], self._more)
        self.complete = True
        return at + 1
