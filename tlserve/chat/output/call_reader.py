"""One call, read from the JSON object that spells it: `{"name": ..., "arguments": {...}}`.

Owns which members the object may have, in any order, and when a call is opened: once its name is known and its arguments have
begun. The text before that is held, so that a text that is not a call can come back whole. Does not know the markup around the
object.

The members are `name` or `tool_name`, and `arguments` or `parameters`: an object, or the JSON text of an object, or null. Both
can be inside a member `function`, which can also be the name itself. Other members (`id`, `type`) are ignored. A call without
arguments has the arguments `{}`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tlserve.chat.dialect import CallArguments, CallClosed, CallOpened, Piece
from tlserve.chat.output.argument_stream import ArgumentStream
from tlserve.chat.output.json_scan import ObjectPart, ObjectReader, PartKind, as_json

_NAMES = ("name", "tool_name", "function")
_ARGUMENTS = ("arguments", "parameters")
Schemas = Mapping[str, Mapping[str, Any]]


def call_pieces(name: str, arguments: str, schemas: Schemas) -> list[Piece]:
    """Return the pieces of a complete call; `arguments` is the JSON text of an object."""
    stream = ArgumentStream(schemas.get(name, {}))
    return [CallOpened(name), CallArguments(stream.feed(arguments) + stream.finish()), CallClosed()]


def argument_pieces(text: str) -> list[Piece]:
    """Return `text` as a piece of the open call's arguments; an empty text gives no piece."""
    return [CallArguments(text)] if text else []


class _NotACall(Exception):
    """The object is not a call."""


class CallReader:
    """Reads one call: `opened` once its first piece was returned, `complete` after its last brace, `failed` if it is not a call.

    `accepts` says which names are taken; an object with another name is not a call. `by_member`: the object's only member has the
    tool's name, and its value is the arguments.
    """

    def __init__(self, schemas: Schemas, accepts: Callable[[str], bool] = bool, *, by_member: bool = False) -> None:
        self.opened = False
        self.failed = False
        self._schemas = schemas
        self._accepts = accepts
        self._by_member = by_member
        self._may_nest = True
        self._object = ObjectReader()
        self._key = ""
        self._value = ""
        self._name = ""
        self._arguments = ""
        self._has_arguments = False
        self._stream = ArgumentStream({})

    @property
    def complete(self) -> bool:
        """Say whether the call's last brace was read."""
        return self._object.complete

    def read(self, text: str) -> tuple[list[Piece], int]:
        """Return the pieces that `text` completes, and the place in it after the call.

        If the call fails after it was opened, that is the place of the first character that cannot belong to it.
        """
        parts, end = self._object.read(text)
        self.failed = self._object.failed
        pieces: list[Piece] = []
        try:
            for part in parts:
                pieces += self._take(part)
            if self.complete:
                pieces += self._close()
        except _NotACall:
            self.failed = True
        return pieces, end

    def flush(self) -> list[Piece]:
        """Return the arguments that are held, because nothing follows."""
        return argument_pieces(self._stream.finish())

    def _take(self, part: ObjectPart) -> Sequence[Piece]:
        if part.kind is PartKind.KEY:
            self._key, self._value = part.text, ""
            if self._by_member:
                self._take_member(part.text)
        elif part.kind is PartKind.VALUE:
            return self._take_value(part.text)
        elif part.kind is PartKind.END:
            return self._end_value()
        return ()

    def _take_member(self, name: str) -> None:
        if self._name:
            raise _NotACall
        self._name, self._key = self._checked_name(name), _ARGUMENTS[0]

    def _take_value(self, text: str) -> Sequence[Piece]:
        """Keep a part of a value; the arguments are passed on as soon as the name is known, if they are an object."""
        if self._key not in _ARGUMENTS or not self._name or (self._value or text)[:1] != "{":
            self._value += text
            return ()
        self._value = "{"
        return () if self._has_arguments else self._pass(text)

    def _end_value(self) -> Sequence[Piece]:
        pieces: Sequence[Piece] = ()
        if self._key == "function" and self._value[:1] == "{" and not self._name and self._may_nest:
            return self._nested(self._value)
        if self._key in _NAMES and not self._name:
            self._name = self._checked_name(json.loads(self._value) if self._value[:1] == '"' else None)
            pieces = self._pass(self._arguments) if self._arguments else ()
        elif self._key in _ARGUMENTS and not self.opened:
            self._arguments = self._checked_arguments(self._value)
            pieces = self._pass(self._arguments) if self._name else ()
        self._has_arguments = self.opened
        return pieces

    def _nested(self, value: str) -> Sequence[Piece]:
        """Read the call inside the member `function`."""
        inner = CallReader(self._schemas, self._accepts)
        inner._may_nest = False
        pieces, _ = inner.read(value)
        if not inner.complete or inner.failed:
            raise _NotACall
        self._name, self.opened, self._has_arguments = inner._name, True, True
        return [piece for piece in pieces if not isinstance(piece, CallClosed)]

    def _checked_name(self, name: object) -> str:
        if not isinstance(name, str) or not name or not self._accepts(name):
            raise _NotACall
        return name

    def _checked_arguments(self, value: str) -> str:
        """Return arguments that were not passed on: an object before the name, the JSON text of an object, or null."""
        text = str(json.loads(value)).strip() or "{}" if value[0] == '"' else "{}" if value == "null" else value
        written = as_json(text) if text[0] == "{" else ""
        if not written:
            raise _NotACall
        return written

    def _pass(self, text: str) -> list[Piece]:
        """Return `text` as arguments; the first time this opens the call."""
        if self.opened:
            return argument_pieces(self._stream.feed(text))
        self.opened = True
        self._stream = ArgumentStream(self._schemas.get(self._name, {}))
        return [CallOpened(self._name), *argument_pieces(self._stream.feed(text))]

    def _close(self) -> list[Piece]:
        if not self._name:
            raise _NotACall
        return [*(() if self.opened else self._pass("{}")), CallClosed()]
