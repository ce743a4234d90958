"""The JSON schemas of the fields of the Responses API that hold objects, as far as they are served.

Owns what the OpenAPI document says of them; `tlserve.responses.items` and its neighbours read the values themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tlserve.openai.tools import CHOICES, NAME_PATTERN

Schema = Mapping[str, Any]

_STRING: Schema = {"type": "string"}
_NAMED: Schema = {"type": "string", "minLength": 1}
_FLAG: Schema = {"type": ["boolean", "null"]}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}


def _object(required: str, **members: Schema) -> Schema:
    return {"type": "object", "required": required.split(), "properties": members}


def _tagged(tag: str, required: str = "", **members: Schema) -> Schema:
    return _object(f"type {required}", type={"const": tag}, **members)


def _part(*tags: str) -> Schema:
    return _object("type text", type={"enum": list(tags)}, text=_STRING)


def _list_of(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _text_or(*tags: str) -> Schema:
    return {"anyOf": [_STRING, _list_of(_part(*tags))]}


def _of_role(role: str, *parts: str) -> Schema:
    members = {"type": {"const": "message"}, "role": {"const": role}, "content": _text_or(*parts)}
    return {"type": "object", "required": ["role", "content"], "properties": members}


_CALL = {"call_id": _NAMED, "name": _NAMED}
_OUTPUT = {"call_id": _NAMED, "output": _text_or("input_text", "output_text")}
_REASONING_PARTS = _list_of(_part("reasoning_text"))
INPUT_ITEMS: Schema = {
    "anyOf": [
        _NAMED,
        {
            "type": "array",
            "minItems": 1,
            "items": {
                "anyOf": [
                    *(_of_role(role, "input_text") for role in ("user", "system", "developer")),
                    _of_role("assistant", "output_text"),
                    _tagged("function_call", "call_id name arguments", **_CALL, arguments=_STRING),
                    _tagged("function_call_output", "call_id output", **_OUTPUT),
                    _tagged("custom_tool_call", "call_id name input", **_CALL, input=_STRING),
                    _tagged("custom_tool_call_output", "call_id output", **_OUTPUT),
                    _tagged("reasoning", "content", content=_REASONING_PARTS),
                ]
            },
        },
    ]
}
_NAME: Schema = {"type": "string", "pattern": NAME_PATTERN}
TOOL: Schema = {
    "anyOf": [
        _tagged(
            "function",
            "name",
            name=_NAME,
            description=_TEXT_OR_NULL,
            parameters={"type": ["object", "null"]},
            strict=_FLAG,
        ),
        _tagged("custom", "name", name=_NAME, description=_TEXT_OR_NULL),
    ]
}
_ONE_TOOL = _object("type name", type={"enum": ["function", "custom"]}, name=_STRING)
TOOL_CHOICE: Schema = {
    "anyOf": [
        {"type": "string", "enum": list(CHOICES)},
        _ONE_TOOL,
        _tagged(
            "allowed_tools",
            "tools",
            mode={"enum": ["auto", "required", None]},
            tools={"type": "array", "minItems": 1, "items": _ONE_TOOL},
        ),
    ]
}
_FORMAT: Schema = {
    "anyOf": [
        _tagged("text"),
        _tagged("json_object"),
        _tagged(
            "json_schema",
            "name schema",
            name={"type": "string", "minLength": 1, "maxLength": 64},
            schema={"type": "object"},
            description=_TEXT_OR_NULL,
            strict=_FLAG,
        ),
        {"type": "null"},
    ]
}
TEXT_CONFIG: Schema = {"type": "object", "properties": {"format": _FORMAT}}
REASONING: Schema = {
    "type": "object",
    "properties": {
        "effort": {"enum": ["none", "minimal", "low", "medium", "high", "xhigh", "max", None]},
        "summary": {"enum": ["auto", "concise", "detailed", None]},
    },
}
