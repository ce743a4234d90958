"""`response_format`, `structured_outputs` and their older names -> the one format that an answer must have.

Owns the shapes of these fields, and that at most one of them asks for a format. A schema is enforced whether `strict` or not.
Does not know how a format is enforced (`tlserve.chat.grammars` does).

Source: the public API reference, `response_format`; `schema` next to `json_object` is llama.cpp's spelling; the other fields
have the names and meanings of vLLM.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import attrs
import msgspec
from msgspec import Meta, Raw, Struct

from tlserve.api.fields import Table, later, read_fields, served
from tlserve.chat.grammars.formats import (
    ANY_OBJECT,
    AnswerFormat,
    choice_format,
    lark_format,
    regex_format,
    schema_format,
)
from tlserve.errors import ClientError

NO_BLANKS = ""
_BLANKS = re.compile(r"(?:(?:\[(?: |\\[tnr])++\]| |\\[tnr])(?:\{[0-9]{1,2}(?:,[0-9]{1,2})?\}|\?)?+)*+")


class TextFormat(Struct, tag_field="type", tag="text"):
    """`response_format` for any text."""


class JsonObjectFormat(Struct, tag_field="type", tag="json_object"):
    """`response_format` for any JSON object, or for a schema, as clients of llama.cpp send it."""

    schema: Any = None


class JsonSchema(Struct):
    """The named schema of a `response_format`; without a schema it is any JSON."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    schema: Any = None
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema"):
    """`response_format` for one schema."""

    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat

STRUCTURED_OUTPUTS: Table = {
    "json": served(str | dict[str, Any] | bool, "a JSON schema, as an object or as its text"),
    "json_object": served(bool, "true or false"),
    "regex": served(str, "a regular expression in Rust's syntax that the whole answer must match"),
    "choice": served(list[str], "a list of texts; the answer is one of them"),
    "grammar": served(str, "a grammar in llguidance's form of Lark, or in GBNF"),
    "whitespace_pattern": served(str, r"bounded whitespace, such as [ \n]{0,4}, with json or json_object"),
    "disable_any_whitespace": served(bool, "true or false, with json or json_object"),
    "disable_additional_properties": served(
        bool, "true, as by default, for objects with only the names of the schema; or false; with json"
    ),
    "structural_tag": later(str, "", ""),
}

OLDER: Table = {
    "regex": served(str, "structured_outputs.regex under an older name"),
    "choice": served(list[str], "structured_outputs.choice under an older name"),
    "grammar": served(str, "structured_outputs.grammar under an older name"),
    "json_schema": served(
        str | dict[str, Any] | bool, "structured_outputs.json under the name of llama.cpp and SGLang"
    ),
    "guided_json": served(str | dict[str, Any] | bool, "structured_outputs.json under an older name"),
    "guided_regex": served(str, "structured_outputs.regex under an older name"),
    "guided_choice": served(list[str], "structured_outputs.choice under an older name"),
    "guided_grammar": served(str, "structured_outputs.grammar under an older name"),
}
_CLOSES = "disable_additional_properties"
_KINDS = ("json", "json_object", "regex", "choice", "grammar")


def response_format_schema() -> Mapping[str, Any]:
    """Return the JSON schema of `response_format`."""
    named = {
        "name": {"type": "string", "minLength": 1, "maxLength": 64},
        "schema": {"type": ["object", "null"]},
        "description": {"type": ["string", "null"]},
        "strict": {"type": ["boolean", "null"]},
    }
    json_schema = {"type": "object", "required": ["name"], "properties": named}
    return {
        "anyOf": [
            _tagged("text"),
            _json_object(),
            _tagged("json_schema", json_schema=json_schema),
        ]
    }


def _json_object() -> dict[str, Any]:
    plain = _tagged("json_object")
    return {**plain, "properties": {**plain["properties"], "schema": {"type": ["object", "null"]}}}


def _tagged(tag: str, **members: Mapping[str, Any]) -> dict[str, Any]:
    properties = {"type": {"type": "string", "const": tag}, **members}
    return {"type": "object", "required": list(properties), "properties": properties}


@attrs.frozen
class _Asked:
    """A field that asks for a format: the kind of the format, and the value."""

    field: str
    kind: str
    value: Any
    place: str
    blanks: str | None = None
    closes: bool = True


def read_format(given: Mapping[str, Any]) -> tuple[AnswerFormat | None, tuple[str, ...]]:
    """Return the format, None if no field asks for one, and the unknown names inside `structured_outputs`.

    Raises ClientError if it is wrong, or if more than one field asks for a format.
    """
    inside, unknown = _structured(given["structured_outputs"]) if "structured_outputs" in given else ([], ())
    asked = [*_response_format(given.get("response_format")), *inside, *_older(given)]
    if len(asked) > 1:
        first, second = asked[0].field, asked[1].field
        raise ClientError(f"{first} and {second} both set the format of the answer; send one of them", param=second)
    return (_MAKERS[asked[0].kind](asked[0]) if asked else None), unknown


def _response_format(value: ResponseFormat | None) -> list[_Asked]:
    field = "response_format"
    if isinstance(value, JsonObjectFormat):
        held = value.schema is not None
        return [_Asked(field, "json", value.schema if held else ANY_OBJECT, f"{field}.schema" if held else field)]
    if isinstance(value, JsonSchemaFormat):
        schema = {} if value.json_schema.schema is None else value.json_schema.schema
        return [_Asked(field, "json", schema, f"{field}.json_schema.schema")]
    return []


def _structured(members: Mapping[str, Raw]) -> tuple[list[_Asked], tuple[str, ...]]:
    field = "structured_outputs."
    values = read_fields(members, STRUCTURED_OUTPUTS, where=field)
    blanks = _blanks(values.given)
    asked = [
        _Asked(field + kind, kind, values.given[kind], field + kind, blanks, values.given.get(_CLOSES, True))
        for kind in _KINDS
        if kind in values.given and values.given[kind] is not False
    ]
    if blanks is not None and not (asked and asked[0].kind.startswith("json")):
        raise ClientError(
            f"{field}whitespace_pattern needs json or json_object; leave it out", param=field + "whitespace_pattern"
        )
    if _CLOSES in values.given and not (asked and asked[0].kind == "json"):
        raise ClientError(f"{field}{_CLOSES} needs json; leave it out", param=field + _CLOSES)
    return asked, values.unknown


def _blanks(given: Mapping[str, Any]) -> str | None:
    pattern: str | None = given.get("whitespace_pattern")
    if given.get("disable_any_whitespace"):
        return NO_BLANKS
    if pattern is not None and not _BLANKS.fullmatch(pattern):
        field = "structured_outputs.whitespace_pattern"
        takes = STRUCTURED_OUTPUTS["whitespace_pattern"].takes
        raise ClientError(f"{field} is not bounded whitespace; send {takes}", param=field)
    return pattern


def _older(given: Mapping[str, Any]) -> list[_Asked]:
    return [
        _Asked(field, field.removeprefix("guided_").removesuffix("_schema"), given[field], field)
        for field in OLDER
        if given.get(field) not in (None, "", [])
    ]


def _of_schema(asked: _Asked) -> AnswerFormat:
    schema = asked.value
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema)
        except (msgspec.DecodeError, RecursionError):
            raise ClientError(f"{asked.place} is a text that is not JSON; send a schema", param=asked.field) from None
    return schema_format(schema, asked.place, asked.field, asked.blanks, closes=asked.closes)


_MAKERS: Mapping[str, Callable[[_Asked], AnswerFormat]] = {
    "json": _of_schema,
    "json_object": lambda asked: schema_format(ANY_OBJECT, asked.place, asked.field, asked.blanks),
    "regex": lambda asked: regex_format(asked.value, asked.field),
    "choice": lambda asked: choice_format(asked.value, asked.field),
    "grammar": lambda asked: lark_format(asked.value, asked.field),
}
