"""The parts that JSON schemas of documents are made of.

Source: JSON Schema 2020-12, as OpenAPI 3.1 uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
COUNT: Schema = {"type": "integer", "minimum": 0}
NUMBER: Schema = {"type": "number"}
FLAG: Schema = {"type": "boolean"}
NULL: Schema = {"type": "null"}


def const(value: str) -> Schema:
    """Return the schema of one text."""
    return {"type": "string", "const": value}


def ref(name: str) -> Schema:
    """Return a reference to a named schema."""
    return {"$ref": f"#/components/schemas/{name}"}


def or_null(schema: Schema) -> Schema:
    """Return the schema of a value that can be null."""
    return {"anyOf": [schema, NULL]}


def list_of(schema: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": schema}


def map_of(schema: Schema) -> Schema:
    """Return the schema of an object whose members have any names and the same schema."""
    return {"type": "object", "additionalProperties": schema}


def closed(**members: Schema) -> Schema:
    """Return the schema of an object that has exactly these members."""
    return {"type": "object", "additionalProperties": False, "required": list(members), "properties": members}


def with_optional(schema: Schema, **members: Schema) -> Schema:
    """Return the schema of a closed object with additional members that are optional."""
    return {**schema, "properties": {**schema["properties"], **members}}


def event_of(*payloads: str) -> Schema:
    """Return the schema of a server-sent event whose data is one of the named documents as JSON, or `[DONE]`."""
    documents = {"anyOf": [ref(name) for name in payloads]}
    data = {"type": "string", "contentMediaType": "application/json", "contentSchema": documents}
    return {"type": "object", "required": ["data"], "properties": {"data": {"anyOf": [const("[DONE]"), data]}}}
