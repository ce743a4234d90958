"""POST /v1/responses over the API: an exact text from the backend, and the response, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.endpoints.answers.test_tools import CONTEXT, ONE_CALL, SERVED, TWO_CALLS, saying, source_of
from tests.kit.scripted_backend import Script, ScriptedBackend
from tlserve.errors import EngineFailed
from tlserve.http.client.connection import HttpResponse

PATH = "/v1/responses"
KNOWN: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
NOW: dict[str, Any] = {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}
ADD: dict[str, Any] = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    "strict": False,
}
CODE: dict[str, Any] = {
    "type": "custom",
    "name": "code",
    "format": {"type": "grammar", "syntax": "regex", "definition": '[a-z" ]{1,9}'},
}
CODE_CALL = '<tool_call>{"name": "code", "arguments": {"input": "say \\"\\u00e9\\\\n\\""}}</tool_call>'
SAID = 'say "é\\n"'


def body(sent: Any = "a", **fields: Any) -> dict[str, Any]:
    return {"model": "succ", "max_output_tokens": 3, "temperature": 0, "input": sent, **fields}


def events_of(answer: HttpResponse) -> list[dict[str, Any]]:
    """Return the events of a stream; each is named as its type, numbered, and one that the official client knows."""
    events = []
    for block in answer.body.decode().split("\n\n")[:-1]:
        if block.startswith(":"):
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        KNOWN.validate_python(event, strict=True)
        events.append(event)
    return events


def response_of(answer: HttpResponse) -> dict[str, Any]:
    """Return a whole response, which is one that the official client knows."""
    assert answer.status == 200, answer.body
    response: dict[str, Any] = json.loads(answer.body)
    Response.model_validate(response, strict=True)
    return response


def rebuilt(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the items that the events between the first and the last add up to."""
    items: list[dict[str, Any]] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            items.append(event["item"])
        elif kind == "content_part.added":
            items[event["output_index"]]["content"].append(event["part"])
        elif kind in ("output_text.delta", "reasoning_text.delta"):
            part = items[event["output_index"]]["content"][event["content_index"]]
            part["text"] += event["delta"]
            part["logprobs"] = part.get("logprobs", []) + event["logprobs"] if "logprobs" in event else None
        elif kind.endswith(".delta"):
            member = "arguments" if kind.startswith("function") else "input"
            items[event["output_index"]][member] += event["delta"]
        elif kind == "output_item.done":
            own = items[event["output_index"]]
            own["status"] = event["item"]["status"]
            assert without_none(own) == without_none(event["item"])
    return items


def without_none(item: dict[str, Any]) -> dict[str, Any]:
    content = [{name: value for name, value in part.items() if value is not None} for part in item.get("content", [])]
    return {**item, "content": content}


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**without_none(item), "id": "", "call_id": ""} for item in items]


async def ask(open_api: Any, text: str, **fields: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the whole response, and the events of the same one."""
    fields = {"max_output_tokens": 1000, **fields}
    async with open_api(saying(text), **SERVED) as api:
        whole = response_of(await api.post(PATH, body(**fields)))
        streamed = await api.post(PATH, body(stream=True, **fields))
    assert streamed.status == 200, streamed.body
    return whole, events_of(streamed)


@pytest.mark.spec("RSP-10", "RSP-12")
async def test_a_response_has_its_text_its_status_and_its_usage(open_api: Any) -> None:
    async with open_api(ScriptedBackend(Script(cached_tokens=1))) as api:
        response = response_of(await api.post(PATH, body(metadata={"a": "b"}, user="me", top_p=0.5)))
    (item,) = response["output"]
    assert item == {
        "id": item["id"],
        "type": "message",
        "role": "assistant",
        "status": "incomplete",
        "content": [{"type": "output_text", "text": "bcd", "annotations": [], "logprobs": []}],
    }
    assert item["id"].startswith("msg_")
    assert response["id"].startswith("resp_")
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert response["usage"] == {
        "input_tokens": 1,
        "input_tokens_details": {"cached_tokens": 1, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 4,
    }
    shown = {
        name: response[name] for name in ("metadata", "user", "top_p", "temperature", "max_output_tokens", "tools")
    }
    assert shown == {
        "metadata": {"a": "b"},
        "user": "me",
        "top_p": 0.5,
        "temperature": 0.0,
        "max_output_tokens": 3,
        "tools": [],
    }


@pytest.mark.spec("RSP-10", "RSP-13")
@pytest.mark.parametrize("text", [TWO_CALLS, ONE_CALL, "No.", "<think>a</think>b", ONE_CALL[:-20], "", CODE_CALL])
async def test_a_stream_adds_up_to_the_whole_response(open_api: Any, text: str) -> None:
    whole, events = await ask(open_api, text, tools=[NOW, ADD, CODE])
    last = events[-1]["response"]
    assert without_ids(rebuilt(events)) == without_ids(whole["output"]) == without_ids(last["output"])
    volatile = {"id": "", "output": []}
    assert {**last, **volatile} == {**whole, **volatile}


@pytest.mark.spec("RSP-13")
async def test_the_events_of_a_response_come_in_the_order_of_the_reference(open_api: Any) -> None:
    _, events = await ask(open_api, "<think>a</think>b" + ONE_CALL, tools=[NOW])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = list(dict.fromkeys(event["type"].removeprefix("response.") for event in events))
    assert kinds[:2] == ["created", "in_progress"]
    ends = [event["type"].removeprefix("response.") for event in events if not event["type"].endswith(".delta")]
    text = ["output_item.added", "content_part.added", "{}.done", "content_part.done", "output_item.done"]
    assert ends == [
        *("created", "in_progress"),
        *(kind.format("reasoning_text") for kind in text),
        *(kind.format("output_text") for kind in text),
        *("output_item.added", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]


@pytest.mark.spec("RSP-9")
async def test_a_call_of_a_custom_tool_has_its_input(open_api: Any) -> None:
    whole, events = await ask(open_api, CODE_CALL, tools=[CODE])
    (item,) = whole["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "code", SAID)
    deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == SAID
    assert len(deltas) > 3
    done = next(event for event in events if event["type"] == "response.custom_tool_call_input.done")
    assert done["input"] == SAID


@pytest.mark.spec("RSP-11")
async def test_a_message_has_log_probabilities_if_they_are_included(open_api: Any) -> None:
    fields: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    async with open_api() as api:
        whole = response_of(await api.post(PATH, body(**fields)))
        events = events_of(await api.post(PATH, body(stream=True, **fields)))
        alone = await api.post(PATH, body(top_logprobs=2))
    entries = whole["output"][0]["content"][0]["logprobs"]
    assert [entry["token"] for entry in entries] == ["b", "c", "d"]
    assert {len(entry["top_logprobs"]) for entry in entries} == {2}
    assert rebuilt(events)[0]["content"][0]["logprobs"] == entries
    assert alone.status == 400


@pytest.mark.spec("RSP-3", "RSP-4")
async def test_items_become_the_turns_of_the_conversation(open_api: Any) -> None:
    items = [
        {"role": "developer", "content": "be kind"},
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": "what "}, {"type": "input_text", "text": "time?"}],
        },
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "now", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "now", "arguments": '{"a":1}'},
        {"type": "custom_tool_call", "call_id": "c2", "name": "code", "input": "x"},
        {"type": "function_call_output", "call_id": "c1", "output": "5"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "6"}]},
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "b"},
    ]
    async with open_api(saying("x"), **SERVED) as api:
        response_of(await api.post(PATH, body(items, instructions="first")))
        (request,) = api.backend.requests
    assert bytes(request.prompt).decode() == (
        "system: first\nsystem: be kind\nuser: what time?\n"
        'assistant: hmnownow({"a": 1})code({"input": "x"})\ntool: 5c1\ntool: 6c2\nassistant: a\nassistant: b\nassistant: '
    )


IMAGE = {"type": "input_image", "image_url": "data:,"}


@pytest.mark.spec("RSP-5")
@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"input": [{"role": "user", "content": [IMAGE]}]}, 422, "input[0].content[0].type is 'input_image'"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, 422, "'input_file'"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            400,
            "input[0].content[0].text is missing",
        ),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, 422, "'web_search_call'"),
        ({"input": [{"type": "function_call", "name": "x", "arguments": ""}]}, 400, "input[0].call_id is missing"),
        ({"input": [{"role": "tool", "content": "x"}]}, 400, "input[0].role is 'tool'"),
        ({"input": [{"content": "x"}]}, 400, "input[0].role is missing"),
        ({"input": []}, 400, "input is empty"),
        ({"input": None}, 400, "input is missing"),
        ({"tools": [{"type": "web_search"}]}, 422, "tools[0] has the type 'web_search'"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, 422, "'mcp'"),
        ({"tools": [{"type": "function"}]}, 400, "tools[0]"),
        ({"tools": [NOW, NOW]}, 400, "'now' is there twice"),
        ({"tools": [NOW], "tool_choice": {"type": "function", "name": "no"}}, 400, "'no'"),
        ({"tools": [NOW], "tool_choice": {"type": "file_search"}}, 422, "'file_search'"),
        (
            {"tools": [NOW], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
            400,
            "tool_choice.tools",
        ),
        ({"tool_choice": "required"}, 400, "there are no tools"),
        ({"conversation": "conv_1"}, 422, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, 422, "prompt"),
        ({"include": ["what"]}, 400, "include"),
        ({"metadata": {"a": 1}}, 400, "metadata"),
        ({"max_output_tokens": 0}, 400, "max_output_tokens"),
        ({"reasoning": {"effort": "high"}}, 422, "reasoning.effort"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, 400, "text"),
        ({"background": True, "store": False}, 400, "background needs store true"),
        ({"stream_options": {}}, 400, "stream_options"),
    ],
)
async def test_what_is_not_served_is_refused_by_name(open_api: Any, fields: Any, status: int, words: str) -> None:
    async with open_api() as api:
        answer = await api.post(PATH, body(**fields) if "input" not in fields else {**body(), **fields})
        assert api.backend.requests == []
    document = json.loads(answer.body)
    assert (answer.status, document["error"]["type"]) == (status, "invalid_request_error")
    assert words in document["error"]["message"]


@pytest.mark.spec("RSP-1")
async def test_members_without_effect_are_named(open_api: Any) -> None:
    fields: dict[str, Any] = {
        "what": 1,
        "reasoning": {"summary": "auto", "odd": 1},
        "text": {"verbosity": "low"},
        "include": ["reasoning.encrypted_content"],
        "tools": [{**NOW, "defer_loading": True}],
    }
    sent = [{"role": "user", "content": [{"type": "input_text", "text": "x", "odd": 1}], "new": 1}]
    async with open_api(saying("x"), **SERVED) as api:
        answer = await api.post(PATH, body(sent, **fields))
        strict = await api.post(PATH, body(sent, **fields), ("X-TL-Strict", "1"))
    assert set((answer.headers.get("x-tl-ignored") or "").split(", ")) == {
        *("what", "reasoning.odd", "reasoning.summary", "text.verbosity", "include.reasoning.encrypted_content"),
        *("tools[].defer_loading", "input[].content[].odd", "input[].new"),
    }
    assert (answer.status, strict.status) == (200, 400)


@pytest.mark.spec("RSP-6")
async def test_a_choice_of_tools_forces_allows_or_forbids_calls(open_api: Any) -> None:
    one = {"type": "function", "name": "add"}
    choices: list[Any] = [
        *("required", one, "none", {"type": "custom", "name": "code"}),
        *({"type": "allowed_tools", "mode": mode, "tools": [one]} for mode in ("auto", "required")),
    ]
    async with open_api(saying("x"), **SERVED) as api:
        answers = [
            response_of(await api.post(PATH, body(tools=[NOW, ADD, CODE], tool_choice=choice))) for choice in choices
        ]
        required, named, none, custom, allowed, forced = api.backend.requests
    assert [answer["tool_choice"] for answer in answers] == choices
    counts = [len(source_of(request.grammar).schemas) for request in (required, named, custom, allowed, forced)]
    assert counts == [3, 1, 1, 1, 1]
    assert none.grammar is None
    assert not bytes(none.prompt).startswith(b"now;")
    assert bytes(allowed.prompt).startswith(b"now;add;code;")
    assert "calls" in source_of(allowed.grammar).rules
    whole, _ = await ask(open_api, TWO_CALLS, tools=[NOW, ADD], parallel_tool_calls=False)
    assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call"]


@pytest.mark.spec("RSP-9")
async def test_the_grammar_of_a_custom_tool_is_enforced_on_its_input(open_api: Any) -> None:
    async with open_api(saying("x"), **SERVED) as api:
        response_of(await api.post(PATH, body(tools=[CODE])))
        (request,) = api.backend.requests
    (placed,) = source_of(request.grammar).schemas.values()
    assert '[a-z\\" ]{1,9}' in json.dumps(placed.schema)


@pytest.mark.spec("RSP-9")
async def test_the_input_of_a_custom_tool_can_follow_a_grammar_in_lark(open_api: Any) -> None:
    lark = {"type": "grammar", "syntax": "lark", "definition": 'start: "a\\n"+'}
    async with open_api(saying("x"), **SERVED) as api:
        shown = response_of(await api.post(PATH, body(tools=[{**CODE, "format": lark}])))["tools"][0]["format"]
        (request,) = api.backend.requests
        wrong = await api.post(PATH, body(tools=[{**CODE, "format": {**lark, "definition": 'start: "'}}]))
    assert source_of(request.grammar).larks == {"input_0": 'start: "a\\\\n"+'}
    assert shown == lark
    assert (wrong.status, json.loads(wrong.body)["error"]["param"]) == (400, "tools[0].format.definition")


@pytest.mark.spec("RSP-6")
async def test_a_function_is_strict_where_its_schema_can_be_enforced(open_api: Any) -> None:
    odd = {**ADD, "name": "odd", "strict": None, "parameters": {"type": "object", "not": {}}}
    async with open_api(saying("x"), **SERVED) as api:
        response = response_of(await api.post(PATH, body(tools=[NOW, ADD, odd])))
    assert [tool["strict"] for tool in response["tools"]] == [True, False, False]


@pytest.mark.spec("RSP-7")
@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_schema", "name": "x", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}},
        {"type": "json_object"},
        {"type": "text"},
    ],
)
async def test_a_format_is_a_schema_that_the_answer_follows(open_api: Any, form: dict[str, Any]) -> None:
    async with open_api(saying("x"), **SERVED) as api:
        response = response_of(await api.post(PATH, body(text={"format": form})))
        (request,) = api.backend.requests
    assert response["text"]["format"]["type"] == form["type"]
    if form["type"] == "text":
        assert request.grammar is None
    else:
        (placed,) = source_of(request.grammar).schemas.values()
        assert placed.schema["type"] == "object"


@pytest.mark.spec("RSP-2")
async def test_a_limit_beyond_the_context_is_lowered(open_api: Any) -> None:
    async with open_api() as api:
        response = response_of(await api.post(PATH, body(max_output_tokens=1_000_000)))
    assert (response["max_output_tokens"], response["usage"]["output_tokens"]) == (1_000_000, 63)


@pytest.mark.spec("RSP-8")
async def test_the_oldest_turns_are_left_out_if_that_is_asked(open_api: Any) -> None:
    items = [{"role": "user" if place % 2 == 0 else "assistant", "content": chr(97 + place) * 9} for place in range(9)]
    async with open_api() as api:
        plain = await api.post(PATH, body(items))
        response = response_of(await api.post(PATH, body(items, truncation="auto", instructions="!")))
        fits = response_of(await api.post(PATH, body(items[:5], truncation="auto")))
        alone = await api.post(PATH, body("a" * 99, truncation="auto"))
        prompts = [bytes(request.prompt).decode() for request in api.backend.requests]
    assert (plain.status, alone.status) == (400, 400)
    assert json.loads(plain.body)["error"]["code"] == "context_length_exceeded"
    assert prompts == ["!" + "".join(c * 9 for c in "efghi"), "".join(c * 9 for c in "abcde")]
    assert (response["truncation"], fits["usage"]["input_tokens"]) == ("auto", 45)


@pytest.mark.spec("RSP-14")
async def test_a_fault_after_the_head_fails_the_response(open_api: Any) -> None:
    failing = ScriptedBackend(Script(failure=EngineFailed("the engine stopped"), fail_before=1), CONTEXT)
    async with open_api(failing) as api:
        events = events_of(await api.post(PATH, body(stream=True)))
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-1]["response"]["error"] == {"code": "server_error", "message": "the engine stopped"}
    assert (events[-1]["response"]["status"], events[-2]["code"]) == ("failed", "engine_failed")
