"""The JSON schemas of the fields of the Messages API that hold objects, as far as they are served.

Owns what the OpenAPI document says of them; `tlserve.anthropic.blocks` and its neighbours read the values themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tlserve.anthropic.tools import NAME_PATTERN

Schema = Mapping[str, Any]

_STRING: Schema = {"type": "string"}
_NAMED: Schema = {"type": "string", "minLength": 1}


def _object(required: str, **members: Schema) -> Schema:
    return {"type": "object", "required": required.split(), "properties": members}


def _block(tag: str, required: str, **members: Schema) -> Schema:
    return _object(f"type {required}", type={"const": tag}, **members)


def _content(*blocks: Schema) -> Schema:
    return {"anyOf": [_STRING, {"type": "array", "minItems": 1, "items": {"anyOf": list(blocks)}}]}


TEXT = _block("text", "text", text=_STRING)
TEXTS: Schema = {"anyOf": [_STRING, {"type": "array", "items": TEXT}]}
_THINKING = _block("thinking", "thinking", thinking=_STRING, signature=_STRING)
_TOOL_USE = _block("tool_use", "id name input", id=_NAMED, name=_NAMED, input={"type": "object"})
_TOOL_RESULT = _block("tool_result", "tool_use_id", tool_use_id=_NAMED, content=TEXTS)
MESSAGE_LIST: Schema = {
    "type": "array",
    "minItems": 1,
    "items": {
        "anyOf": [
            _object("role content", role={"const": "user"}, content=_content(_TOOL_RESULT, TEXT)),
            _object("role content", role={"const": "assistant"}, content=_content(_THINKING, TEXT, _TOOL_USE)),
            _object("role content", role={"const": "system"}, content=_content(TEXT)),
        ]
    },
}
TOOL = _object(
    "name input_schema",
    name={"type": "string", "pattern": NAME_PATTERN},
    description={"type": ["string", "null"]},
    input_schema={"type": "object"},
    strict={"type": ["boolean", "null"]},
)
CHOICE: Schema = {
    "anyOf": [
        _object(
            "type", type={"enum": ["auto", "any", "none"]}, disable_parallel_tool_use={"type": ["boolean", "null"]}
        ),
        _object("type name", type={"const": "tool"}, name=_STRING),
    ]
}
THINKING = _object(
    "type",
    type={"enum": ["enabled", "disabled", "adaptive"]},
    budget_tokens={"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]},
)
FORMAT = _object("type schema", type={"const": "json_schema"}, schema={"type": "object"})
OUTPUT_CONFIG: Schema = {
    "type": "object",
    "properties": {
        "effort": {"enum": ["low", "medium", "high", "xhigh", "max", None]},
        "format": {"anyOf": [FORMAT, {"type": "null"}]},
    },
}
