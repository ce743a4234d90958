"""The JSON schemas of request bodies, made from the field tables.

Owns the translation: a type becomes its schema, every optional field takes null, a field that is not served takes only the values
without effect, and messages and inner objects get the schemas of their own tables. Source: JSON Schema 2020-12, as OpenAPI 3.1
uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from docs.make.json_schemas import Schema, ref
from tlserve.api.fields import Field, FieldKind, Table
from tlserve.openai import answer_formats, field_tables, messages


def body_schema(table: Table) -> Schema:
    """Return the schema of an object that is read with `table`; other members are allowed and ignored."""
    required = [name for name, field in table.items() if field.required]
    members = {name: _member(name, field) for name, field in table.items()}
    return {"type": "object", **({"required": required} if required else {}), "properties": members}


def part_schemas() -> Mapping[str, Schema]:
    """Return the named schemas that bodies refer to: the messages of all served roles."""
    served = {role: table for role, table in messages.BY_ROLE.items() if table["role"].kind is FieldKind.SERVED}
    return {"Message": {"anyOf": [_message(role, table) for role, table in served.items()]}}


def _message(role: str, table: Table) -> Schema:
    """Return the schema of a message of one role; its content can be missing or null only with tool calls."""
    schema = body_schema(table)
    members = {**schema["properties"], "role": {"type": "string", "const": role}}
    content = {**(table["content"].schema or {}), "description": table["content"].takes}
    whole = {
        **schema,
        "required": sorted({*schema["required"], "content"}),
        "properties": {**members, "content": content},
    }
    if "tool_calls" not in table:
        return whole
    calls = {**(table["tool_calls"].schema or {}), "minItems": 1}
    called = {
        **schema,
        "required": sorted({*schema["required"], "tool_calls"}),
        "properties": {**members, "tool_calls": calls},
    }
    return {"anyOf": [whole, called]}


def _member(name: str, field: Field) -> Schema:
    schema = dict(_shape_schema(name, field))
    if not field.required:
        schema = {"anyOf": [*schema.get("anyOf", [schema]), {"type": "null"}]}
    return {**schema, "description": field_words(field)}


def _shape_schema(name: str, field: Field) -> Mapping[str, Any]:
    if field.shape == list[dict[str, msgspec.Raw]]:
        return {"type": "array", "minItems": 1, "items": ref("Message")}
    if name == "stream_options":
        return body_schema(field_tables.STREAM_OPTIONS)
    if name == "structured_outputs":
        return body_schema(answer_formats.STRUCTURED_OUTPUTS)
    if field.schema is not None:
        return field.schema
    return {"enum": _asking_nothing(field)} if field.kind is FieldKind.LATER else _schema_of(field.shape)


def _asking_nothing(field: Field) -> list[Any]:
    """Return the values, other than null, that a field without support takes."""
    if field.noops or not field.takes:
        return list(field.noops) or [None]
    return [msgspec.json.decode(field.takes)]


def _schema_of(shape: Any) -> Mapping[str, Any]:
    (schema,), _ = msgspec.json.schema_components([shape])
    return schema


def field_words(field: Field) -> str:
    """Return the description of a field: what it takes, and whether it is served."""
    if field.kind is FieldKind.LATER:
        return "not served: 422" + (f" for all but {field.takes}" if field.takes else "")
    return field.takes + (" (without effect)" if field.kind is FieldKind.INERT else "")
