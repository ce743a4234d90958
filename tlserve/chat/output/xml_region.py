"""A region with one call as tags, in which each argument is a text."""

from __future__ import annotations

import json
import re

from tlserve.chat.dialect import CallArguments, CallClosed, CallOpened, Piece
from tlserve.chat.output.argument_stream import declared_type, unquoted
from tlserve.chat.output.call_reader import Schemas
from tlserve.chat.output.region import MAX_HEAD_CHARS, BaseRegion, Read

_FUNCTION = re.compile(r"\s*<function=([^<>\n]{1,512})>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]{1,512})>")
_PARAMETER_END = "</parameter>"
_FUNCTION_END = "</function>"


class XmlRegion(BaseRegion):
    """One call as tags: `<function=name>`, then `<parameter=key>` value `</parameter>`, `</function>`, and `end`.

    A value is a text. It becomes the type that its schema names, where it can. It is passed on once it is complete.
    """

    def __init__(self, begin: str, end: str, schemas: Schemas) -> None:
        super().__init__(begin)
        self._end = end
        self._schemas = schemas
        self._name = ""
        self._count = 0
        self._closed = False
        self._searched = 0

    def feed(self, text: str) -> Read:
        """Read as many elements as are complete."""
        self._raw += text
        pieces: list[Piece] = []
        while not self.over and (element := self._element()) is not None:
            pieces += element
        if not self.over:
            return pieces, ""
        rest, self._raw = self._raw, ""
        return pieces, rest

    def finish(self) -> Read:
        """Give back the text that is not read; a call that was cut is not closed."""
        if self._closed and not self._raw.strip():
            return [], ""
        return self._fail("")

    def _element(self) -> list[Piece] | None:
        """Return the pieces of the next element, or None while it is incomplete."""
        if not self._opened:
            return self._function()
        if self._closed:
            return self._literal(self._end)
        if self._could_be(_FUNCTION_END):
            return self._literal(_FUNCTION_END)
        return self._parameter()

    def _could_be(self, tag: str) -> bool:
        """Say whether the text begins with `tag`, or with the beginning of it."""
        stripped = self._raw.lstrip()
        return stripped[: len(tag)] == tag[: len(stripped)]

    def _function(self) -> list[Piece] | None:
        found = _FUNCTION.match(self._raw)
        if found is None:
            return None if self._could_name("<function=") else self._give_up()
        self._name, self._raw, self._opened = found[1], self._raw[found.end() :], True
        return [CallOpened(self._name), CallArguments("{")]

    def _parameter(self) -> list[Piece] | None:
        found = _PARAMETER.match(self._raw)
        if found is None:
            return None if self._could_name("<parameter=") else self._give_up()
        end = self._raw.find(_PARAMETER_END, max(found.end(), self._searched))
        if end < 0:
            self._searched = len(self._raw) - len(_PARAMETER_END) + 1
            return None
        value = self._raw[found.end() : end].removeprefix("\n").removesuffix("\n")
        self._raw, self._searched = self._raw[end + len(_PARAMETER_END) :], 0
        return [CallArguments(self._member(found[1], value))]

    def _member(self, key: str, value: str) -> str:
        """Return a member of the arguments as JSON, with the comma before it."""
        comma = ", " if self._count else ""
        self._count += 1
        kind = declared_type(self._schemas.get(self._name, {}), key)
        return f"{comma}{json.dumps(key, ensure_ascii=False)}: {typed(value, kind)}"

    def _could_name(self, tag: str) -> bool:
        """Say whether the text can still become a tag with a name in it."""
        name = self._raw.lstrip()[len(tag) :]
        return self._could_be(tag) and len(name) <= MAX_HEAD_CHARS and not any(mark in name for mark in "<>\n")

    def _literal(self, tag: str) -> list[Piece] | None:
        """Read `tag`, which closes the call or the region."""
        stripped = self._raw.lstrip()
        if not stripped.startswith(tag):
            return None if self._could_be(tag) else self._give_up()
        self._raw = stripped[len(tag) :]
        if self._closed:
            self.over = True
            return []
        self._closed = True
        return [CallArguments("}"), CallClosed()]

    def _give_up(self) -> list[Piece]:
        pieces, self._raw = self._fail("")
        return pieces


def typed(value: str, kind: str) -> str:
    """Return the text of an argument as JSON of type `kind`, or as a string where it is not of that type."""
    quoted = json.dumps(value, ensure_ascii=False)
    if kind in ("", "string"):
        return quoted
    text = value.strip()
    if text == "null" or (kind == "boolean" and text in ("True", "False")):
        return text.lower()
    return unquoted(text, kind) or quoted
