"""JSON that is still being generated, read piece by piece.

Finds where a value ends, and where the text stops being JSON. `ValueScanner` reads one value; `ObjectReader` reads an object and
separates its keys from its values. Both give the same result however the text is cut. They do not know what a value is for.

The reader is lenient in two points, because models need it. JSON forbids control characters inside a string: here they are
replaced by their escapes. The escape of half a surrogate pair is replaced by that of U+FFFD: no character has it, and many
readers refuse the whole document for it. Source: RFC 8259, sections 7 and 8.2.
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
_REPLACEMENT = "\\ufffd"


class _NotJson(Exception):
    """The text is not JSON; `at` is the place of the first character that cannot belong to it."""

    def __init__(self, at: int) -> None:
        super().__init__(f"not JSON at {at}")
        self.at = at


class ValueScanner:
    """Reads one value: `complete` after its last character, `failed` if the text is not JSON.

    A number or a literal name ends before the character that follows it; that character is not read.
    """

    def __init__(self) -> None:
        self.complete = False
        self.failed = False
        self._open: list[str] = []
        self._step: Callable[[str, int], int] = self._value
        self._is_key = False
        self._token = ""
        self._unit = ""  # an escape such as \u00e9, held until its last digit
        self._high = ""  # the escape of the first half of a surrogate pair, held until the second
        self._out: list[str] = []

    def read(self, text: str, at: int = 0) -> tuple[str, int]:
        """Return the part of the value in `text` from `at` on, and the place after it.

        If the text is not JSON, that is the place of the first character that cannot belong to the value.
        """
        try:
            while at < len(text) and not self.complete:
                at = self._step(text, at)
        except _NotJson as fault:
            self.failed, at = True, fault.at
            self._out += self._high, self._unit
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
            raise _NotJson(at)
        self._step = self._bare
        return at

    def _push(self, text: str, at: int) -> int:
        if len(self._open) == MAX_DEPTH:
            raise _NotJson(at)
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

    def _expect(self, text: str, at: int, expected: str, step: Callable[[str, int], int]) -> int:
        if text[at] in _SPACE:
            return self._take(text, at, self._step)
        if text[at] != expected:
            raise _NotJson(at)
        return self._take(text, at, step)

    def _more(self, text: str, at: int) -> int:
        """Read what follows a member: the next member, or the end of the array or object."""
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
        if end > at:
            self._end_pair()
            self._out.append(text[at:end])
        if end == len(text):
            return end
        if text[end] == "\\":
            self._step = self._escape
            return end + 1
        self._end_pair()
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
            self._unit, self._step = "\\u", self._unicode
            return at + 1
        self._end_pair()
        if text[at] not in _ESCAPED:
            raise _NotJson(at)
        self._out.append("\\")
        return self._take(text, at, self._string)

    def _unicode(self, text: str, at: int) -> int:
        if text[at] not in _HEX:
            raise _NotJson(at)
        self._unit += text[at]
        if len(self._unit) == len("\\u0000"):
            self._step = self._string
            self._end_unit(self._unit, int(self._unit[2:], 16))
            self._unit = ""
        return at + 1

    def _end_unit(self, unit: str, code: int) -> None:
        """Pass on the escape `unit` of `code`, or hold it where a second half must follow."""
        if 0xDC00 <= code < 0xE000:
            self._out.append(self._high + unit if self._high else _REPLACEMENT)
            self._high = ""
            return
        self._end_pair()
        if 0xD800 <= code < 0xDC00:
            self._high = unit
        else:
            self._out.append(unit)

    def _end_pair(self) -> None:
        """Replace the first half of a pair that has no second half."""
        if self._high:
            self._out.append(_REPLACEMENT)
            self._high = ""

    def _bare(self, text: str, at: int) -> int:
        """Read a number, or one of the names true, false and null."""
        end = _TOKEN.match(text, at).end()  # type: ignore[union-attr]
        self._token += text[at:end]
        self._out.append(text[at:end])
        if end < len(text):
            if not _LITERAL.fullmatch(self._token):
                raise _NotJson(end)
            self._token = ""
            self._ended()
        return end


def is_json(text: str) -> bool:
    """Say whether `text` is exactly one JSON string, array or object, with nothing around it."""
    return bool(text) and as_json(text) == text


def as_json(text: str) -> str:
    """Return `text` as the readers above pass it on if it is one JSON string, array or object, else ""."""
    scanner = ValueScanner()
    written, end = scanner.read(text)
    return written if scanner.complete and end == len(text) else ""


class PartKind(enum.Enum):
    """What a part of an object's text is. `FRAME` is the text around keys and values; `END` follows a value's last part."""

    FRAME = "frame"
    KEY = "key"
    VALUE = "value"
    END = "end"


@attrs.frozen
class ObjectPart:
    """A part of an object. A key is decoded; its text as it was written is in the frame after it."""

    kind: PartKind
    text: str = ""


class ObjectReader:
    """Reads one object: `complete` after its closing brace, `failed` if the text is not JSON.

    Its frames and values, joined, are its text.
    """

    def __init__(self) -> None:
        self.complete = False
        self.failed = False
        self._step: Callable[[str, int], int] = self._begin
        self._scanner = ValueScanner()
        self._key = ""
        self._parts: list[ObjectPart] = []

    def read(self, text: str, at: int = 0) -> tuple[list[ObjectPart], int]:
        """Return the parts in `text` from `at` on, and the place after them.

        If the text is not JSON, that is the place of the first character that cannot belong to the object.
        """
        try:
            while at < len(text) and not self.complete:
                at = self._step(text, at)
        except _NotJson as fault:
            self.failed, at = True, fault.at
        parts, self._parts = self._parts, []
        return parts, at

    def _frame(self, text: str, step: Callable[[str, int], int]) -> None:
        self._parts.append(ObjectPart(PartKind.FRAME, text))
        self._step = step

    def _punctuation(self, text: str, at: int, steps: dict[str, Callable[[str, int], int]]) -> int:
        if text[at] not in _SPACE and text[at] not in steps:
            raise _NotJson(at)
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
            self._parts.append(ObjectPart(PartKind.KEY, json.loads(self._key)))
            self._frame(self._key, self._colon)
        elif self._scanner.failed:
            raise _NotJson(at)
        return at

    def _colon(self, text: str, at: int) -> int:
        return self._punctuation(text, at, {":": self._before_value})

    def _before_value(self, text: str, at: int) -> int:
        if text[at] in _SPACE:
            return self._punctuation(text, at, {})
        self._scanner, self._step = ValueScanner(), self._in_value
        return at

    def _in_value(self, text: str, at: int) -> int:
        piece, at = self._scanner.read(text, at)
        if piece:
            self._parts.append(ObjectPart(PartKind.VALUE, piece))
        if self._scanner.complete:
            self._parts.append(ObjectPart(PartKind.END))
            self._step = self._more
        elif self._scanner.failed:
            raise _NotJson(at)
        return at

    def _more(self, text: str, at: int) -> int:
        return self._end(text, at) if text[at] == "}" else self._punctuation(text, at, {",": self._next_key})

    def _end(self, text: str, at: int) -> int:
        self._frame(text[at], self._more)
        self.complete = True
        return at + 1
