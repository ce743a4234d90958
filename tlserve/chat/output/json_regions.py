"""Regions whose calls have their arguments as JSON: a whole call as an object, or a name and then the arguments.

Does not know which family writes which.
"""

from __future__ import annotations

from collections.abc import Callable

from tlserve.chat.dialect import CallArguments, CallClosed, CallOpened, Piece
from tlserve.chat.output.argument_stream import ArgumentStream
from tlserve.chat.output.call_reader import CallReader, Schemas
from tlserve.chat.output.json_scan import JsonFault, ValueScanner
from tlserve.chat.output.region import MAX_HEAD_CHARS, BaseRegion

_SPACE = " \t\n\r"
_SEPARATORS = _SPACE + "[],;"


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
