"""The markup of calls: a region of an answer, from the marker that begins it to the end of its calls.

Owns the forms that a region may have: JSON calls, one or a list (`JsonRegion`); a name, and then its arguments as JSON
(`NamedRegion`); and the tags of XML, in which each argument is a text (`XmlRegion`). Refuses to know which family writes which.

A region that turns out to be none gives back its text: first its marker, as content, and then all the rest to be read anew, so
that a call further on is still found. A call that was opened is not taken back; what cannot belong to it any more is read anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Protocol

from tlserve.chat.dialect import CallArguments, CallClosed, CallOpened, Channel, ChannelText, Piece
from tlserve.chat.output.argument_stream import ArgumentStream, declared_type, unquoted
from tlserve.chat.output.call_reader import CallReader, Schemas
from tlserve.chat.output.json_scan import JsonFault, ValueScanner

MAX_HEAD_CHARS = 512
_SPACE = " \t\n\r"
_SEPARATORS = _SPACE + "[],;"


class Region(Protocol):
    """Reads one region; `over` once it has ended, and then `feed` returned what follows it."""

    over: bool

    @property
    def held(self) -> int:
        """Return the number of characters that may come back as content."""

    def feed(self, text: str, pieces: list[Piece]) -> str:
        """Add to `pieces` what `text` gives; return the text that is not the region's."""

    def finish(self, pieces: list[Piece]) -> str:
        """Add what was held of an open call; return the text that is no call."""


class BaseRegion:
    """What all regions share: `_raw` is the text since `begin`, or since the last call was opened, that may come back."""

    def __init__(self, begin: str) -> None:
        self.over = False
        self._begin = begin
        self._raw = ""
        self._opened = False

    @property
    def held(self) -> int:
        """Return the number of characters that may come back as content."""
        return len(self._raw)

    def _fail(self, rest: str, pieces: list[Piece]) -> str:
        """End the region; return what is to be read anew."""
        self.over = True
        if not self._opened and self._begin:
            pieces.append(ChannelText(Channel.CONTENT, self._begin))
        return self._raw + rest

    def _commit(self) -> None:
        """Take what was read so far for markup."""
        self._opened = True
        self._raw = ""


def _pass_on(text: str, pieces: list[Piece]) -> None:
    if text:
        pieces.append(CallArguments(text))


class JsonRegion(BaseRegion):
    """Calls as JSON objects, one after another, in a list or not, up to the tag `end`, or without one to other text."""

    def __init__(self, begin: str, end: str, schemas: Schemas, accepts: Callable[[str], bool] = bool) -> None:
        super().__init__(begin)
        self._end = end
        self._schemas = schemas
        self._accepts = accepts
        self._call: CallReader | None = None
        self._tag = ""

    def feed(self, text: str, pieces: list[Piece]) -> str:
        """Read calls and what stands between them."""
        while text and not self.over:
            text = self._between(text, pieces) if self._call is None else self._within(self._call, text, pieces)
        return text

    def finish(self, pieces: list[Piece]) -> str:
        """Close nothing: a call that was cut stays as it is."""
        if self._call is not None and self._call.opened:
            _pass_on(self._call.flush(), pieces)
            return ""
        if self._call is None and self._opened:
            return ""
        return self._fail("", pieces)

    def _between(self, text: str, pieces: list[Piece]) -> str:
        character = text[0]
        if self._end.startswith(self._tag + character) and self._end:
            return self._read_tag(text, pieces)
        if character == "{" and not self._tag:
            self._call = CallReader(self._schemas, self._accepts)
            return text
        if character not in _SEPARATORS or self._tag:
            return self._fail(self._tag + text, pieces)
        if not self._opened:
            self._raw += character
        return text[1:]

    def _read_tag(self, text: str, pieces: list[Piece]) -> str:
        self._tag += text[0]
        if self._tag != self._end:
            return text[1:]
        if not self._opened:
            return self._fail(self._tag + text[1:], pieces)
        self.over = True
        return text[1:]

    def _within(self, call: CallReader, text: str, pieces: list[Piece]) -> str:
        was_opened = call.opened
        try:
            end = call.read(text, 0, pieces)
        except JsonFault as fault:
            if not call.opened:
                return self._fail(text, pieces)
            self._commit()
            _pass_on(call.flush(), pieces)
            return self._fail(text[fault.at :], pieces)
        if call.opened and not was_opened:
            self._commit()
        elif not call.opened:
            self._raw += text[:end]
        if call.complete:
            self._call = None
        return text[end:]


class EitherRegion(BaseRegion):
    """A region of one of several forms: `choose` returns it for the text so far, without blanks before it, or None."""

    def __init__(self, begin: str, choose: Callable[[str], Region | None]) -> None:
        super().__init__(begin)
        self._choose = choose
        self._inner: Region | None = None

    @property
    def held(self) -> int:
        """Return the number of characters that may come back as content."""
        return len(self._raw) if self._inner is None else self._inner.held

    def feed(self, text: str, pieces: list[Piece]) -> str:
        """Choose the form; then let it read."""
        if self._inner is None:
            text = self._raw + text
            self._inner = self._choose(text.lstrip())
        if self._inner is None:
            self._raw = text
            return ""
        rest = self._inner.feed(text, pieces)
        self.over = self._inner.over
        return rest

    def finish(self, pieces: list[Piece]) -> str:
        """Let the form finish."""
        return self._fail("", pieces) if self._inner is None else self._inner.finish(pieces)


class NamedRegion(BaseRegion):
    """A name, and from the first brace on its arguments as JSON; then `end`, if there is one.

    `name_of` finds the name in what stands before the brace; "" says that it is none.
    """

    def __init__(self, begin: str, end: str, schemas: Schemas, name_of: Callable[[str], str]) -> None:
        super().__init__(begin)
        self._end = end
        self._schemas = schemas
        self._name_of = name_of
        self._scanner = ValueScanner()
        self._stream = ArgumentStream({})

    def feed(self, text: str, pieces: list[Piece]) -> str:
        """Read the name, the arguments, the end."""
        if not self._opened:
            text = self._head(text, pieces)
        if self._opened and not self.over and not self._scanner.complete:
            text = self._arguments(text, pieces)
        return self._tail(text, pieces) if self._scanner.complete and not self.over else text

    def finish(self, pieces: list[Piece]) -> str:
        """Close nothing: a call that was cut stays as it is."""
        if not self._opened:
            return self._fail("", pieces)
        _pass_on(self._stream.finish(), pieces)
        return self._raw

    def _head(self, text: str, pieces: list[Piece]) -> str:
        head, brace, _ = (self._raw + text).partition("{")
        if not brace and len(head) <= MAX_HEAD_CHARS:
            self._raw = head
            return ""
        name = self._name_of(head) if brace and len(head) <= MAX_HEAD_CHARS else ""
        if not name:
            return self._fail(text, pieces)
        rest = text[len(head) - len(self._raw) :]
        self._commit()
        self._stream = ArgumentStream(self._schemas.get(name, {}))
        pieces.append(CallOpened(name))
        return rest

    def _arguments(self, text: str, pieces: list[Piece]) -> str:
        try:
            read, end = self._scanner.read(text)
        except JsonFault as fault:
            read, _ = self._scanner.read("")
            _pass_on(self._stream.feed(read) + self._stream.finish(), pieces)
            return self._fail(text[fault.at :], pieces)
        _pass_on(self._stream.feed(read), pieces)
        if self._scanner.complete:
            pieces.append(CallClosed())
        return text[end:]

    def _tail(self, text: str, pieces: list[Piece]) -> str:
        """Read up to the end; blanks and backticks before it are part of the markup."""
        if not self._end:
            self.over = True
            return text
        self._raw += text
        tail = self._raw.lstrip(_SPACE + "`")
        if self._end.startswith(tail) and tail != self._end:
            return ""
        if not tail.startswith(self._end):
            return self._fail("", pieces)
        self.over = True
        self._raw = ""
        return tail[len(self._end) :]


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
