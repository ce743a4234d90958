"""A region with one call as tags, in which each argument is a text."""

from __future__ import annotations

import json
import re

from tlserve.chat.dialect import CallArguments, CallClosed, CallOpened, Piece
from tlserve.chat.output.argument_stream import declared_type, unquoted
from tlserve.chat.output.call_reader import Schemas
from tlserve.chat.output.region import MAX_HEAD_CHARS, BaseRegion

_FUNCTION = re.compile(r"\s*<function=([^<>\n]{1,512})>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]{1,512})>")
_PARAMETER_END = "</parameter>"


class XmlRegion(BaseRegion):
    """One call as tags: `<function=name>`, then `<parameter=key>` value `</parameter>`, `</function>`, and `end`.

    A value is a text, and becomes what its schema says, where it can. It is given once it is complete.
    """

    def __init__(self, begin: str, end: str, schemas: Schemas) -> None:
        super().__init__(begin)
        self._end = end
        self._schemas = schemas
        self._name = ""
        self._count = 0
        self._closed = False
        self._searched = 0

    def feed(self, text: str, pieces: list[Piece]) -> str:
        """Read as many elements as are complete."""
        self._raw += text
        while not self.over and self._element(pieces):
            pass
        rest = self._raw if self.over else ""
        if self.over:
            self._raw = ""
        return rest

    def finish(self, pieces: list[Piece]) -> str:
        """Close nothing: a call that was cut stays as it is."""
        if self._closed and not self._raw.strip():
            return ""
        return self._fail("", pieces)

    def _element(self, pieces: list[Piece]) -> bool:
        """Read the next element; False if there is more to come of it."""
        if not self._opened:
            return self._function(pieces)
        if self._closed:
            return self._literal(self._end, pieces)
        if self._could_be("</function>"):
            return self._literal("</function>", pieces)
        return self._parameter(pieces)

    def _could_be(self, tag: str) -> bool:
        stripped = self._raw.lstrip()
        return stripped[: len(tag)] == tag[: len(stripped)]

    def _function(self, pieces: list[Piece]) -> bool:
        found = _FUNCTION.match(self._raw)
        if found is None:
            return self._wait("<function=", pieces)
        self._name, self._raw, self._opened = found[1], self._raw[found.end() :], True
        pieces += [CallOpened(self._name), CallArguments("{")]
        return True

    def _parameter(self, pieces: list[Piece]) -> bool:
        found = _PARAMETER.match(self._raw)
        if found is None:
            return self._wait("<parameter=", pieces)
        end = self._raw.find(_PARAMETER_END, max(found.end(), self._searched))
        if end < 0:
            self._searched = len(self._raw) - len(_PARAMETER_END) + 1
            return False
        value = self._raw[found.end() : end].removeprefix("\n").removesuffix("\n")
        member = json.dumps(found[1], ensure_ascii=False) + ": " + typed(value, self._kind(found[1]))
        pieces.append(CallArguments((", " if self._count else "") + member))
        self._raw, self._searched, self._count = self._raw[end + len(_PARAMETER_END) :], 0, self._count + 1
        return True

    def _kind(self, name: str) -> str:
        return declared_type(self._schemas.get(self._name, {}), name)

    def _wait(self, tag: str, pieces: list[Piece]) -> bool:
        """Wait for the rest of a tag with a name in it, if this can be one."""
        stripped = self._raw.lstrip()
        name = stripped[len(tag) :]
        if not self._could_be(tag) or len(name) > MAX_HEAD_CHARS or any(character in name for character in "<>\n"):
            self._raw = self._fail("", pieces)
            return False
        return False

    def _literal(self, tag: str, pieces: list[Piece]) -> bool:
        """Read `tag`; it closes the call, or the region."""
        stripped = self._raw.lstrip()
        if not stripped.startswith(tag):
            if not self._could_be(tag):
                self._raw = self._fail("", pieces)
            return False
        self._raw = stripped[len(tag) :]
        if self._closed:
            self.over = True
        else:
            self._closed = True
            pieces += [CallArguments("}"), CallClosed()]
        return True


def typed(value: str, kind: str) -> str:
    """Return the text of an argument as JSON of type `kind`, or as a string where it is not of that type."""
    quoted = json.dumps(value, ensure_ascii=False)
    if kind in ("", "string"):
        return quoted
    text = value.strip()
    if text == "null" or (kind == "boolean" and text in ("True", "False")):
        return text.lower()
    return unquoted(text, kind) or quoted
