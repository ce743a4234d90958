"""The schema of a tool's parameters -> the schema that is enforced on its arguments.

The rules: arguments are an object; a tool without parameters takes no arguments; and if a schema lists names and says nothing
of other names, no other names are allowed, as in an answer with a schema. Does not know how calls are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tlserve.chat.grammars.recursion import resolve
from tlserve.chat.grammars.schemas import checked_schema, closed_schema, lenient_schema
from tlserve.errors import ClientError

_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
_FIELD = "tools"


def arguments_schema(parameters: Mapping[str, Any] | None, place: str, *, strict: bool) -> Mapping[str, Any]:
    """Return the schema to enforce; raises ClientError for a strict tool whose schema cannot be enforced completely."""
    if parameters is None:
        return _NO_ARGUMENTS
    try:
        check = checked_schema if strict else lenient_schema
        schema = check(parameters, place, _FIELD)
    except ClientError:
        if strict:
            raise
        schema = {}
    return _as_object(schema, place, strict=strict)


def _as_object(schema: Any, place: str, *, strict: bool) -> Mapping[str, Any]:
    schema = _unfolded(schema)
    if "object" not in _types(schema):
        if strict:
            raise ClientError(f"{place}.type must be object, because arguments are an object", param=_FIELD)
        return {"type": "object"}
    closed = closed_schema({**schema, "type": "object"})
    assert isinstance(closed, Mapping)
    return closed


def _types(schema: Mapping[str, Any]) -> Any:
    kind = schema.get("type", "object")
    return (kind,) if isinstance(kind, str) else kind


def _unfolded(schema: Any) -> Mapping[str, Any]:
    """Return the schema that a reference at the root refers to."""
    seen = 0
    while isinstance(schema, Mapping) and set(schema) <= {"$ref", "$defs", "definitions"} and "$ref" in schema:
        shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
        target = resolve(schema, schema["$ref"])
        schema, seen = {**shared, **(target if isinstance(target, Mapping) else {})}, seen + 1
        if seen > len(shared.get("$defs", ())) + len(shared.get("definitions", ())):
            return {}
    return schema if isinstance(schema, Mapping) else {}
