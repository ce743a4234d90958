"""The arguments of a call, coerced by its tool's schema where nothing is lost.

Owns the rules of that, and that all else passes on as it is generated. Only the members of the
arguments themselves are looked at, and only those whose schema names one type; their values change only from one spelling of
the same thing to another:

    the schema says                 the model wrote           it becomes
    integer, number, boolean        "5"  "2.5"  "true"        5  2.5  true
    integer                         5.0                       5
    string                          5  2.5  true              "5"  "2.5"  "true"
    object, array                   "{...}"  "[...]"          {...}  [...]

A value that the schema does not ask to change is passed on in pieces; one that it may is held until it is complete.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tlserve.chat.output.json_scan import JsonFault, ObjectReader, Part, ValueScanner

Schema = Mapping[str, Any]

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_WHOLE = re.compile(r"(?P<integer>-?(?:0|[1-9][0-9]*))\.0+")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_UNQUOTED = {"integer": _INTEGER, "number": _NUMBER, "boolean": re.compile(r"true|false")}
_OPENERS = {"object": "{", "array": "["}


def declared_type(schema: Schema, name: str) -> str:
    """Return the one type that `schema` gives the member `name`, or ""."""
    properties = schema.get("properties")
    member = properties.get(name) if isinstance(properties, Mapping) else None
    kind = member.get("type") if isinstance(member, Mapping) else None
    return kind if isinstance(kind, str) else ""


def coerce(value: str, kind: str) -> str:
    """Return the JSON text `value` as type `kind`, or as it is where that would lose or invent something."""
    if kind == "integer" and (whole := _WHOLE.fullmatch(value)):
        return whole["integer"]
    if kind == "string":
        return json.dumps(value) if _NUMBER.fullmatch(value) or value in ("true", "false") else value
    if value[:1] == '"':
        return unquoted(json.loads(value), kind) or value
    return value


def unquoted(text: str, kind: str) -> str:
    """Return `text` if it is JSON of type `kind`, else ""."""
    if kind in _UNQUOTED:
        return text if _UNQUOTED[kind].fullmatch(text) else ""
    return text if kind in _OPENERS and text[:1] == _OPENERS[kind] and is_json(text) else ""


def is_json(text: str) -> bool:
    """Say whether `text` is one JSON value, brackets and all, and nothing else."""
    scanner = ValueScanner()
    try:
        written, end = scanner.read(text)
    except JsonFault:
        return False
    return scanner.complete and end == len(text) and written == text


def _may_change(value: str, kind: str) -> bool:
    """Say whether a value that begins with `value` is held."""
    return kind == "integer" or (kind in _UNQUOTED or kind in _OPENERS) == (value[:1] == '"')


class ArgumentStream:
    """The text of one call's arguments, on its way: an object, or the beginning of one."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._reader = ObjectReader()
        self._kind = ""
        self._value: str | None = None
        """What is held of a value; None where values pass."""

    def feed(self, text: str) -> str:
        """Return what `text`, a further piece of valid JSON, lets pass."""
        if not self._schema:
            return text
        parts, _ = self._reader.read(text)
        return "".join(self._pass(part.part, part.text) for part in parts)

    def finish(self) -> str:
        """Return what is held, because nothing follows."""
        held, self._value = self._value or "", None
        return held

    def _pass(self, part: Part, text: str) -> str:
        if part is Part.KEY:
            self._kind = declared_type(self._schema, text)
            self._value = "" if self._kind else None
            return ""
        if part is Part.END:
            held = self.finish()
            return coerce(held, self._kind) if held else ""
        if part is Part.FRAME or self._value is None:
            return text
        self._value += text
        return "" if _may_change(self._value, self._kind) else self.finish()
