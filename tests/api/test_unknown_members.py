"""Unknown members inside the values of a request: their paths, and the refusal of a strict request."""

import json
from typing import Any

import pytest

from tlserve.api.chat_request import BodyRules
from tlserve.errors import ClientError
from tlserve.openai.requests import parse_chat

FUNCTION = {"name": "f", "description": None, "parameters": {"type": "object", "zz": 1}, "strict": False}
TOOL = {"type": "function", "function": FUNCTION}
USER = {"role": "user", "content": "x"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"zz": 1}}}
ANSWER = {"role": "assistant", "content": None, "tool_calls": [CALL]}
NAMED = {"name": "n", "description": "d", "strict": True, "schema": {"type": "object"}}


def body(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [USER], **fields}).encode()


def parts(**members: Any) -> list[dict[str, Any]]:
    content = [{"type": "text", "text": "x"}, {"type": "text", "text": "y", **members}]
    return [{"role": "user", "content": content}, {"role": "user", "content": content}]


@pytest.mark.spec("API-153", "API-142", "API-6")
@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"response_format": {"type": "json_object", "zz": 1}}, "response_format.zz"),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {**NAMED, "zz": None}}},
            "response_format.json_schema.zz",
        ),
        ({"tools": [TOOL, {**TOOL, "function": {"name": "g"}, "strict": True}]}, "tools[].strict"),
        ({"tools": [{**TOOL, "function": {**FUNCTION, "zz": 1}}]}, "tools[].function.zz"),
        ({"tools": [{**TOOL, "zz": 1}], "tool_choice": "none"}, "tools[].zz"),
        (
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f", "zz": 1}}},
            "tool_choice.function.zz",
        ),
        ({"messages": parts(cache_control={"type": "ephemeral"})}, "messages[].content[].cache_control"),
        ({"messages": [USER, {**ANSWER, "tool_calls": [{**CALL, "index": 0}]}]}, "messages[].tool_calls[].index"),
        (
            {"messages": [USER, {**ANSWER, "tool_calls": [{**CALL, "function": {"name": "f", "zz": 1}}]}]},
            "messages[].tool_calls[].function.zz",
        ),
    ],
)
def test_an_unknown_member_inside_a_value_is_named_by_its_path(fields: dict[str, Any], path: str) -> None:
    assert parse_chat(body(**fields)).ignored == (path,)
    with pytest.raises(ClientError) as refused:
        parse_chat(body(**fields), BodyRules(strict=True))
    assert refused.value.param == path


@pytest.mark.spec("API-153")
def test_known_members_and_members_of_schemas_are_not_unknown() -> None:
    known = body(
        response_format={"type": "json_schema", "json_schema": NAMED},
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "f"}},
        messages=[*parts(), ANSWER],
    )
    assert parse_chat(known, BodyRules(strict=True)).ignored == ()


@pytest.mark.spec("API-153")
def test_an_unknown_member_inside_a_value_can_have_any_value() -> None:
    text = body(messages=parts(zz="ANY")).decode()
    for value in ("1e400", "9" * 5000, "[[{}]]"):
        assert parse_chat(text.replace('"ANY"', value).encode()).ignored == ("messages[].content[].zz",)
