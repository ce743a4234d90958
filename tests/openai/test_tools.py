"""Bodies with tools, calls and thinking: the values that are read, and the refusals with their status."""

import json
from typing import Any

import pytest

from tlserve.api.chat_request import NO_TOOLS, BodyRules, ChatRequest
from tlserve.chat.dialect import ToolUse
from tlserve.chat.messages import Role, Turn, TurnCall
from tlserve.chat.thinking import Thinking
from tlserve.errors import ClientError, Refusal
from tlserve.openai.requests import parse_chat

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
F = {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA}}
G = {"type": "function", "function": {"name": "g"}}
STRICT = {"name": "f", "strict": True}
ASSISTANT = {"role": "assistant", "content": "x"}


def chat(messages: Any = None, **fields: Any) -> ChatRequest:
    body = {"model": "m", "messages": messages or [{"role": "user", "content": "x"}], **fields}
    return parse_chat(json.dumps(body).encode(), BodyRules())


def allowed_tools(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def turn(**fields: Any) -> Turn:
    return chat([{"role": "user", "content": "x"}, {"role": "assistant", **fields}]).messages[1]


@pytest.mark.spec("API-48")
def test_tools_reach_the_prompt_as_sent_and_the_reader_by_name() -> None:
    tools = chat(tools=[F, G], tool_choice="auto").tools
    assert tools.shown == (F, G)
    assert tools.use == ToolUse(schemas={"f": SCHEMA, "g": {}})


@pytest.mark.spec("API-185")
@pytest.mark.parametrize("mode", ["auto", "required"])
def test_only_allowed_tools_can_be_called_and_all_are_shown(mode: str) -> None:
    tools = chat(tools=[F, G], tool_choice=allowed_tools(mode, "g")).tools
    assert tools.shown == (F, G)
    assert tools.use is not None
    assert tools.use.required == (mode == "required")
    assert [*(tools.use.enforced or ())] == ["g"]


@pytest.mark.spec("API-48", "CASE-14")
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tools": []},
        {"tools": None},
        {"tool_choice": None},
        {"tools": [], "tool_choice": "auto"},
        {"parallel_tool_calls": False},
    ],
)
def test_every_way_to_send_no_tools_gives_none(fields: dict[str, Any]) -> None:
    assert chat(**fields) == chat()
    assert chat().tools == NO_TOOLS


@pytest.mark.spec("API-120")
@pytest.mark.parametrize("tools", [None, [], [F]])
def test_tool_choice_none_shows_no_tool_and_allows_no_call(tools: Any) -> None:
    found = chat(tools=tools, tool_choice="none").tools
    assert found.shown == ()
    assert found.use is not None
    assert found.use.hidden


def test_one_call_at_a_time_can_be_requested() -> None:
    use = chat(tools=[F], parallel_tool_calls=False).tools.use
    assert use is not None
    assert not use.parallel


NAMED_F = {"type": "function", "function": {"name": "f"}}


def enforced(**fields: Any) -> dict[str, Any]:
    use = chat(**fields).tools.use
    assert use is not None
    return {name: (placed.place, placed.schema) for name, placed in (use.enforced or {}).items()}


@pytest.mark.spec("API-85")
def test_required_calls_are_only_of_the_tools_with_their_schemas() -> None:
    use = chat(tools=[G, F], tool_choice="required").tools.use
    assert use is not None
    assert (use.required, use.named, use.parallel) == (True, False, True)
    assert enforced(tools=[G, F], tool_choice="required") == {
        "g": ("tools[0].function.parameters", {"type": "object", "properties": {}, "additionalProperties": False}),
        "f": ("tools[1].function.parameters", {**SCHEMA, "additionalProperties": False}),
    }


@pytest.mark.spec("API-85")
def test_a_named_tool_is_called_once_and_no_other_is() -> None:
    use = chat(tools=[G, F], tool_choice=NAMED_F).tools.use
    assert use is not None
    assert (use.required, use.named, use.parallel) == (True, True, False)
    assert set(use.enforced or ()) == {"f"}


@pytest.mark.spec("API-86")
def test_a_free_choice_enforces_something_only_where_a_tool_is_strict() -> None:
    assert enforced(tools=[F, G]) == {}
    strict = {"type": "function", "function": {"name": "s", "parameters": SCHEMA, "strict": True}}
    assert set(enforced(tools=[F, strict])) == {"f", "s"}
    use = chat(tools=[F, strict]).tools.use
    assert use is not None
    assert (use.required, use.strict) == (False, frozenset({"s"}))


@pytest.mark.spec("CHAT-54", "CHAT-73")
@pytest.mark.parametrize(
    ("parameters", "kept"),
    [
        (
            {"properties": {"a": {"not": {}}}},
            {"properties": {"a": {}}, "type": "object", "additionalProperties": False},
        ),
        ({"type": "object"}, {"type": "object"}),
        (
            {"type": ["object", "null"], "anyOf": [{"required": ["a"]}]},
            {"type": "object", "anyOf": [{"required": ["a"]}]},
        ),
        ({"type": "array"}, {"type": "object"}),
        ({"$ref": "#"}, {"type": "object"}),
        (
            {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"next": {"$ref": "#/$defs/n"}}}}},
            {
                "$defs": {
                    "n": {
                        "type": "object",
                        "properties": {"next": {"$ref": "#/$defs/n"}},
                        "additionalProperties": False,
                    }
                },
                "type": "object",
                "properties": {"next": {"$ref": "#/$defs/n"}},
                "additionalProperties": False,
            },
        ),
    ],
)
def test_a_tool_that_is_not_strict_is_enforced_as_far_as_possible(parameters: Any, kept: Any) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    assert enforced(tools=[tool], tool_choice="required")["f"][1] == kept


FAULTS = [
    (400, "tools", {"tools": [{}]}),
    (400, "tools", {"tools": [{"type": "function"}]}),
    (400, "tools", {"tools": [{"type": "magic", "function": {"name": "f"}}]}),
    (400, "tools", {"tools": [{"type": "function", "function": {"name": "two words"}}]}),
    (400, "tools", {"tools": [{"type": "function", "function": {"name": "x" * 65}}]}),
    (400, "tools", {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]}),
    (400, "tools", {"tools": [F, F]}),
    (400, "tools", {"tools": [G] * 129}),
    (422, "tools", {"tools": [{"type": "custom", "custom": {"name": "c"}}]}),
    (400, "tools", {"tools": [{"type": "function", "function": {**STRICT, "parameters": {"not": {}}}}]}),
    (400, "tools", {"tools": [{"type": "function", "function": {**STRICT, "parameters": {"type": "array"}}}]}),
    (400, "tool_choice", {"tool_choice": "required"}),
    (400, "tool_choice", {"tools": [], "tool_choice": "required"}),
    (400, "tool_choice", {"tools": [F], "tool_choice": "sometimes"}),
    (400, "tool_choice", {"tools": [F], "tool_choice": {"type": "function"}}),
    (400, "tool_choice", {"tools": [F], "tool_choice": {"type": "function", "function": {"name": "g"}}}),
    (422, "tool_choice", {"tools": [F], "tool_choice": {"type": "custom", "custom": {}}}),
    (400, "tool_choice", {"tools": [F], "tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}),
    (400, "tool_choice", {"tools": [F], "tool_choice": allowed_tools("auto", "g")}),
    (400, "tool_choice", {"tools": [F], "tool_choice": allowed_tools("auto")}),
    (400, "tool_choice", {"tools": [F], "tool_choice": allowed_tools("sometimes", "f")}),
    (400, "reasoning_effort", {"reasoning_effort": "much"}),
    (400, "enable_thinking", {"enable_thinking": "yes"}),
    (400, "chat_template_kwargs", {"chat_template_kwargs": []}),
    (400, "continue_final_message", {"continue_final_message": True}),
    (
        400,
        "continue_final_message",
        {"messages": [ASSISTANT], "continue_final_message": True, "add_generation_prompt": True},
    ),
    (
        400,
        "continue_final_message",
        {
            "messages": [{**ASSISTANT, "tool_calls": [{"id": "1", "function": {"name": "f"}}]}],
            "continue_final_message": True,
        },
    ),
]


@pytest.mark.spec("API-48", "CASE-50")
@pytest.mark.parametrize(("status", "param", "fields"), FAULTS)
def test_a_wrong_tool_is_400_and_an_unsupported_one_422(status: int, param: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ClientError) as refused:
        chat(**fields)
    assert (refused.value.param, isinstance(refused.value, Refusal)) == (param, status == 422)


def test_the_place_of_a_fault_in_a_tool_is_named() -> None:
    with pytest.raises(ClientError, match=r"tools\[1\]\.function\.name"):
        chat(tools=[F, {"type": "function", "function": {"name": ""}}])


@pytest.mark.spec("API-51")
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (None, {}),
        ('{"a": ', '{"a": '),
        ("[1]", "[1]"),
        ('{"a": 1e999}', '{"a": 1e999}'),
        (' {"a": 1}\n', {"a": 1}),
        ('{"a": ' * 900 + "1" + "}" * 900, '{"a": ' * 900 + "1" + "}" * 900),
    ],
)
def test_arguments_of_earlier_calls_are_text_or_an_object(arguments: Any, expected: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    assert turn(content=None, tool_calls=[call]) == Turn(Role.ASSISTANT, "", calls=(TurnCall("c", "f", expected),))


@pytest.mark.spec("API-51")
def test_an_answer_can_be_returned_unchanged_in_the_next_request() -> None:
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    given = turn(content=None, refusal=None, tool_calls=[call], reasoning_content="hm", reasoning="hm")
    assert given == Turn(Role.ASSISTANT, "", reasoning="hm", calls=(TurnCall("c", "f", {}),))


@pytest.mark.spec("API-122")
@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_is_read_under_both_names_only_for_an_assistant(name: str) -> None:
    assert turn(content="x", **{name: "hm"}).reasoning == "hm"
    request = chat([{"role": "user", "content": "x", name: "not mine"}])
    assert request.messages[0].reasoning is None
    assert request.ignored == (f"messages[].{name}",)


@pytest.mark.spec("API-53")
def test_the_options_for_thinking_and_the_template_are_kept() -> None:
    request = chat(
        [{"role": "user", "content": "x"}, ASSISTANT],
        enable_thinking=False,
        reasoning_effort="low",
        chat_template_kwargs={"a": [1]},
        continue_final_message=True,
    )
    assert request.thinking == Thinking(enabled=False, effort="low", variables={"a": [1]})
    assert request.continue_final
    assert not chat(add_generation_prompt=False).add_generation_prompt
