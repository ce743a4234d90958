"""One call, from the JSON object that spells it: `{"name": ..., "arguments": {...}}`.

Owns which members there may be, in which order, and when a call is opened: once its name is known and its arguments have begun.
What comes before that is held, so that a text that is no call can still come back whole. Refuses to know the markup around.

The members: `name`; `arguments` or `parameters`: an object, or the JSON text of one, or null; others (`id`, `type`) are passed
over. Without arguments there are none: `{}`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tlserve.chat.dialect import CallArguments, CallClosed, CallOpened, Piece
from tlserve.chat.output.argument_stream import ArgumentStream, is_json
from tlserve.chat.output.json_scan import JsonFault, ObjectReader, Part

_ARGUMENTS = ("arguments", "parameters")
Schemas = Mapping[str, Mapping[str, Any]]


def call_pieces(name: str, arguments: str, schemas: Schemas) -> list[Piece]:
    """Return the pieces of a call that is complete; `arguments` is the JSON text of an object."""
    stream = ArgumentStream(schemas.get(name, {}))
    return [CallOpened(name), CallArguments(stream.feed(arguments) + stream.finish()), CallClosed()]


class CallReader:
    """Reads one call. `opened` once its name was given; `complete` once its last brace was read.

    `accepts` says which names are taken; another is a fault.
    """

    def __init__(self, schemas: Schemas, accepts: Callable[[str], bool] = bool) -> None:
        self.opened = False
        self._schemas = schemas
        self._accepts = accepts
        self._object = ObjectReader()
        self._key = ""
        self._value = ""
        self._name = ""
        self._arguments = ""
        self._has_arguments = False
        self._stream: ArgumentStream | None = None
        self._at = 0

    @property
    def complete(self) -> bool:
        """Say whether the call is over."""
        return self._object.complete

    def read(self, text: str, at: int, pieces: list[Piece]) -> int:
        """Add to `pieces` what `text` from `at` on gives; return the place behind the call. Raises JsonFault."""
        self._at = at
        fault: JsonFault | None = None
        try:
            parts, end = self._object.read(text, at)
        except JsonFault as error:
            parts, end, fault = self._object.taken(), error.at, error
        for part in parts:
            self._take(part.part, part.text, pieces)
        if fault is not None:
            raise fault
        if self.complete:
            self._close(pieces)
        return end

    def flush(self) -> str:
        """Return what is held of arguments that have begun, because nothing follows."""
        return "" if self._stream is None else self._stream.finish()

    def _take(self, part: Part, text: str, pieces: list[Piece]) -> None:
        if part is Part.KEY:
            self._key, self._value = text, ""
        elif part is Part.VALUE:
            self._take_value(text, pieces)
        elif part is Part.END:
            self._end_value(pieces)

    def _take_value(self, text: str, pieces: list[Piece]) -> None:
        if self._key not in _ARGUMENTS or not self._name or (self._value or text)[:1] != "{":
            self._value += text
        elif not self._has_arguments:
            self._value = "{"
            self._open(pieces)
            self._pass(text, pieces)

    def _end_value(self, pieces: list[Piece]) -> None:
        if self._key == "name" and not self._name:
            self._set_name(json.loads(self._value))
            if self._arguments:
                self._open(pieces)
                self._pass(self._arguments, pieces)
        elif self._key in _ARGUMENTS and not self.opened:
            self._set_arguments(self._value, pieces)
        self._has_arguments = self.opened

    def _set_name(self, name: object) -> None:
        if not isinstance(name, str) or not name or not self._accepts(name):
            raise JsonFault(self._at)
        self._name = name

    def _set_arguments(self, value: str, pieces: list[Piece]) -> None:
        """Take arguments that are not an object yet to be streamed: one that came before the name, its JSON text, or null."""
        text = str(json.loads(value)).strip() or "{}" if value[0] == '"' else "{}" if value == "null" else value
        if text[0] != "{" or not is_json(text):
            raise JsonFault(self._at)
        self._arguments = text
        if self._name:
            self._open(pieces)
            self._pass(text, pieces)

    def _open(self, pieces: list[Piece]) -> None:
        if self._stream is None:
            self._stream = ArgumentStream(self._schemas.get(self._name, {}))
            self.opened = True
            pieces.append(CallOpened(self._name))

    def _pass(self, text: str, pieces: list[Piece]) -> None:
        assert self._stream is not None
        if passed := self._stream.feed(text):
            pieces.append(CallArguments(passed))

    def _close(self, pieces: list[Piece]) -> None:
        if not self._name:
            raise JsonFault(self._at)
        if not self.opened:
            self._open(pieces)
            self._pass("{}", pieces)
        pieces.append(CallClosed())
