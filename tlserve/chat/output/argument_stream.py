"""The arguments of a call, coerced to the types in its tool's schema where nothing is lost.

Holds the rules of the coercion; everything else is passed on as it is generated. Only the top-level members of the arguments are
coerced, and only those whose schema names one type. A value changes only from one spelling to another spelling of the same value:

    the schema says                 the model wrote           it becomes
    integer, number, boolean        "5"  "2.5"  "true"        5  2.5  true
    integer                         5.0                       5
    string                          5  2.5  true              "5"  "2.5"  "true"
    object, array                   "{...}"  "[...]"          {...}  [...]

A value that cannot change is passed on in pieces. A value that may change is held until it is complete.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tlserve.chat.output.json_scan import ObjectPart, ObjectReader, PartKind, as_json
from tlserve.chat.regions.python_call import python_json

Schema = Mapping[str, Any]

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")
_WHOLE = re.compile(r"(?P<integer>-?(?:0|[1-9][0-9]*))\.0+")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_UNQUOTED = {"integer": _INTEGER, "number": _NUMBER, "boolean": re.compile(r"true|false")}
_ZEROS = re.compile(r"\A(-?)0+(?=[0-9])")
_OPENERS = {"object": "{", "array": "["}
_ANY_TYPES = frozenset({"integer", "number", "boolean", "object", "array", "null"})
_MAX_UNIONS = 8
_WRAPPERS = frozenset({"arguments", "parameters", "properties", "input"})
_ALIASES = {
    **dict.fromkeys(("float", "double", "decimal"), "number"),
    **dict.fromkeys(("int", "long"), "integer"),
    **dict.fromkeys(("bool",), "boolean"),
    **dict.fromkeys(("str", "text"), "string"),
    **dict.fromkeys(("dict",), "object"),
    **dict.fromkeys(("list", "tuple"), "array"),
}
"""Names that JSON Schema does not have, but that can only mean one of its types."""


def declared_type(schema: Schema, name: str) -> str:
    """Return the type that `schema` gives the member `name`, or "" if it does not give exactly one."""
    properties = schema.get("properties")
    member = properties.get(name) if isinstance(properties, Mapping) else None
    kind = member.get("type") if isinstance(member, Mapping) else None
    return _ALIASES.get(kind, kind) if isinstance(kind, str) else ""


def declared_types(schema: Schema, name: str) -> frozenset[str]:
    """Return every type that `schema` allows the member `name`; none if it does not say."""
    properties = schema.get("properties")
    member = properties.get(name) if isinstance(properties, Mapping) else None
    return _types(member, depth=0)


def _types(schema: object, depth: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or depth > _MAX_UNIONS:
        return frozenset()
    kind = schema.get("type")
    if isinstance(kind, str | list):
        return frozenset(
            _ALIASES.get(own, own) for own in ([kind] if isinstance(kind, str) else kind) if isinstance(own, str)
        )
    parts = [own for word in ("anyOf", "oneOf") if isinstance(schema.get(word), list) for own in schema[word]]
    if parts:
        return frozenset().union(*(_types(part, depth + 1) for part in parts))
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    return frozenset(map(_type_of, values)) if isinstance(values, list) else frozenset()


def _type_of(value: object) -> str:
    kinds = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", type(None): "null"}
    return kinds.get(type(value), "object")


def typed(value: str, schema: Schema, name: str, *, is_text: bool | None = None) -> str:
    """Return the text `value` of the argument `name` as JSON of a type that `schema` allows, else as a string.

    If the schema allows a string, only null and the types that are listed with it are read. `is_text` is what the model itself
    says where the schema says nothing. Zeros before a number are dropped where the schema allows no string.
    """
    quoted = json.dumps(value, ensure_ascii=False)
    kinds = declared_types(schema, name)
    if not kinds:
        return quoted if is_text is not False else _as_value(value.strip(), _ANY_TYPES) or quoted
    if kinds == {"string"}:
        return quoted
    if kinds == {"integer"} and (whole := _WHOLE.fullmatch(value.strip())):
        return whole["integer"]
    if "string" in kinds:
        return _as_value(value.strip(), kinds) or quoted
    return _as_value(_ZEROS.sub(r"\1", value.strip()), kinds | {"null"}) or quoted


def _as_value(text: str, kinds: frozenset[str]) -> str:
    """Return `text` as JSON of one of `kinds`, or ""."""
    if text.lower() in ("true", "false", "null", "none"):
        word = text.lower().replace("none", "null")
        return word if ("null" if word == "null" else "boolean") in kinds else ""
    return next((found for kind in sorted(kinds) if (found := unquoted(text, kind))), "")


def coerce(value: str, kind: str) -> str:
    """Return the JSON text `value` as type `kind`, or unchanged where the change would lose or invent something."""
    if kind == "integer" and (whole := _WHOLE.fullmatch(value)):
        return whole["integer"]
    if kind == "string":
        return json.dumps(value) if _NUMBER.fullmatch(value) or value in ("true", "false") else value
    if value[:1] == '"':
        return unquoted(json.loads(value), kind) or value
    return value


def unquoted(text: str, kind: str) -> str:
    """Return `text` as JSON if it is of type `kind`, else ""; an object or a list may be written as in Python."""
    if kind in _UNQUOTED:
        return text if _UNQUOTED[kind].fullmatch(text) else ""
    return (as_json(text) or python_json(text)) if kind in _OPENERS and text[:1] == _OPENERS[kind] else ""


def unwrapped(name: str, value: str, schema: Schema) -> str:
    """Return the members of the object `value`, as JSON, if it stands for all arguments of a call; else "".

    The schema has no argument `name`, and it has all members of the object.
    """
    known = schema.get("properties")
    if name not in _WRAPPERS or not isinstance(known, Mapping) or name in known:
        return ""
    written = unquoted(value.strip(), "object")
    keys = {part.text for part in ObjectReader().read(written)[0] if part.kind is PartKind.KEY}
    if not keys or not keys <= known.keys():
        return ""
    stream = ArgumentStream(schema)
    return (stream.feed(written) + stream.finish())[1:-1].strip()


def _may_change(value: str, kind: str) -> bool:
    """Say whether a value that begins with `value` may change, so that it must be held."""
    return kind == "integer" or (kind in _UNQUOTED or kind in _OPENERS) == (value[:1] == '"')


class ArgumentStream:
    """Coerces the arguments of one call while they are generated: an object, or the beginning of one."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._reader = ObjectReader()
        self._kind = ""
        self._value: str | None = None
        """The text that is held of a value; None where values are passed on."""

    def feed(self, text: str) -> str:
        """Return the text that can be passed on now; `text` is the next piece of valid JSON."""
        if not self._schema:
            return text
        parts, _ = self._reader.read(text)
        return "".join(map(self._pass, parts))

    def finish(self) -> str:
        """Return the text that is held, because nothing follows."""
        held, self._value = self._value or "", None
        return held

    def _pass(self, part: ObjectPart) -> str:
        if part.kind is PartKind.KEY:
            self._kind = declared_type(self._schema, part.text)
            self._value = "" if self._kind else None
            return ""
        if part.kind is PartKind.END:
            held = self.finish()
            return coerce(held, self._kind) if held else ""
        if part.kind is PartKind.FRAME or self._value is None:
            return part.text
        self._value += part.text
        return "" if _may_change(self._value, self._kind) else self.finish()
