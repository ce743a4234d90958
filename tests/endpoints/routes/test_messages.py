"""POST /v1/messages over the API: an exact text from the backend, and the message, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from tests.endpoints.answers.test_tools import ONE_CALL, SERVED, TWO_CALLS, saying, source_of
from tests.kit.scripted_backend import Script, ScriptedBackend
from tlserve.errors import EngineFailed
from tlserve.http.client.connection import HttpResponse

PATH = "/v1/messages"
KNOWN: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
NOW: dict[str, Any] = {"name": "now", "input_schema": {"type": "object", "properties": {}}}
ADD: dict[str, Any] = {
    "name": "add",
    "description": "Adds.",
    "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": ""}}


def body(content: Any = "a", **fields: Any) -> dict[str, Any]:
    return {"model": "succ", "max_tokens": 3, "messages": [{"role": "user", "content": content}], **fields}


def events_of(answer: HttpResponse) -> list[dict[str, Any]]:
    """Return the events of a stream; each is named as its type."""
    events = []
    for block in answer.body.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def rebuilt(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the message that the events add up to; each is one that the official client knows."""
    for event in events:
        KNOWN.validate_python(event, strict=True)
    message, texts = dict(events[0]["message"]), {"text": "text", "thinking": "thinking", "input_json": "partial_json"}
    blocks: list[dict[str, Any]] = []
    for event in events[1:]:
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "gained": ""})
        elif event["type"] == "content_block_delta":
            name = event["delta"]["type"].removesuffix("_delta")
            blocks[event["index"]]["gained"] += event["delta"][texts[name]]
        elif event["type"] == "message_delta":
            message |= {**event["delta"], "usage": {**message["usage"], **event["usage"]}}
    return {**message, "content": list(map(complete, blocks))}


def complete(block: dict[str, Any]) -> dict[str, Any]:
    gained = block.pop("gained")
    if block["type"] != "tool_use":
        return {**block, block["type"]: gained}
    try:
        return {**block, "input": json.loads(gained or "{}")}
    except ValueError:
        return block


async def ask(open_api: Any, text: str, **fields: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the whole message, and the events of the same answer."""
    fields = {"max_tokens": 1000, **fields}
    async with open_api(saying(text), **SERVED) as api:
        whole = await api.post(PATH, body(**fields))
        streamed = await api.post(PATH, body(stream=True, **fields))
    assert (whole.status, streamed.status) == (200, 200), whole.body
    return json.loads(whole.body), events_of(streamed)


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message for a comparison: ids are random."""
    blocks = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    return {**message, "id": "", "content": blocks}


@pytest.mark.spec("MSG-10", "MSG-12")
async def test_a_message_has_its_text_its_reason_and_its_usage(open_api: Any) -> None:
    async with open_api(ScriptedBackend(Script(cached_tokens=1))) as api:
        answer = await api.post(PATH, body())
    message = json.loads(answer.body)
    Message.model_validate(message, strict=True)
    assert answer.headers.get("request-id") == answer.headers.get("x-request-id")
    assert message == {
        "id": message["id"],
        "type": "message",
        "role": "assistant",
        "model": "succ",
        "content": [{"type": "text", "text": "bcd"}],
        "stop_reason": "max_tokens",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 0,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 1,
            "output_tokens": 3,
            "output_tokens_details": {"thinking_tokens": 0},
        },
    }
    assert message["id"].startswith("msg-")


@pytest.mark.spec("MSG-10", "MSG-13")
@pytest.mark.parametrize("text", [TWO_CALLS, ONE_CALL, "No.", "<think>a</think>b", ONE_CALL[:-20], ""])
async def test_a_stream_adds_up_to_the_whole_message(open_api: Any, text: str) -> None:
    whole, events = await ask(open_api, text, tools=[NOW, ADD])
    assert without_ids(rebuilt(events)) == without_ids(whole)


@pytest.mark.spec("MSG-13")
async def test_the_events_of_a_stream_come_in_the_order_of_the_reference(open_api: Any) -> None:
    _, events = await ask(open_api, "<think>a</think>b" + ONE_CALL, tools=[NOW])
    kinds = [event["type"].removeprefix("content_block_") for event in events]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    opened = [kind for kind in kinds[1:-2] if kind != "delta"]
    assert opened == ["start", "stop"] * 3
    assert [event["index"] for event in events[1:-2] if event["type"] == "content_block_start"] == [0, 1, 2]
    deltas = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert list(dict.fromkeys(deltas)) == ["thinking_delta", "text_delta", "input_json_delta"]


@pytest.mark.spec("MSG-10", "MSG-11")
async def test_calls_are_blocks_with_an_object_and_an_id(open_api: Any) -> None:
    whole, _ = await ask(open_api, TWO_CALLS, tools=[NOW, ADD])
    thinking, text, now, add = whole["content"]
    assert (thinking["thinking"], text["text"]) == ("I need two.", "Let me see.")
    assert (now["name"], now["input"], add["name"], add["input"]) == ("now", {}, "add", {"a": 1, "b": 2})
    assert now["id"] != add["id"]
    assert whole["stop_reason"] == "tool_use"


@pytest.mark.spec("MSG-11")
async def test_the_stop_sequence_that_ended_an_answer_is_named(open_api: Any) -> None:
    whole, events = await ask(open_api, "one two three", stop_sequences=["xx", "two"])
    assert whole["content"] == [{"type": "text", "text": "one "}]
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", "two")
    assert events[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "two"}
    ended, _ = await ask(open_api, "one", stop_sequences=["two"])
    assert (ended["stop_reason"], ended["stop_sequence"]) == ("end_turn", None)


@pytest.mark.spec("MSG-2", "MSG-11")
async def test_a_limit_that_does_not_fit_the_context_is_lowered(open_api: Any) -> None:
    async with open_api() as api:
        message = json.loads((await api.post(PATH, body(max_tokens=32_000))).body)
        long = await api.post(PATH, body("a" * 64))
    assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("model_context_window_exceeded", 63)
    assert (long.status, "prompt is too long" in json.loads(long.body)["error"]["message"]) == (400, True)


@pytest.mark.spec("MSG-3")
async def test_blocks_become_turns_in_order(open_api: Any) -> None:
    conversation = [
        {"role": "user", "content": [{"type": "text", "text": "q", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": ""},
                {"type": "text", "text": "x"},
                {"type": "tool_use", "id": "c1", "name": "now", "input": {"k": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "noon"}]},
                {"type": "text", "text": "and "},
                {"type": "text", "text": "now?"},
            ],
        },
    ]
    async with open_api(saying("!"), **SERVED) as api:
        system = [{"type": "text", "text": "S"}]
        answer = await api.post(PATH, {**body(), "messages": conversation, "system": system, "tools": [NOW]})
        (request,) = api.backend.requests
    assert answer.status == 200, answer.body
    assert bytes(request.prompt).decode() == (
        'now;system: S\nuser: q\nassistant: txnow({"k": 1})\ntool: nooncall\nuser: and now?\nassistant: '.replace(
            "call", "c1"
        )
    )


@pytest.mark.spec("MSG-4")
async def test_a_last_message_of_the_assistant_is_continued(open_api: Any) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    async with open_api() as api:
        answer = json.loads((await api.post(PATH, {**body(), "messages": messages})).body)
    assert answer["content"] == [{"type": "text", "text": "cde"}]


@pytest.mark.spec("MSG-5")
@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, 422, "messages.0.content.0 is a block of type 'image'"),
        ({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}, 422, "'document'"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [IMAGE]}]}
                ]
            },
            422,
            "messages.0.content.0.content.0",
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "text", "text": "x"}, {"type": "tool_result", "tool_use_id": "c"}],
                    }
                ]
            },
            400,
            "send the results first",
        ),
        ({"messages": [{"role": "tool", "content": "x"}]}, 400, "messages"),
        ({"messages": [{"role": "system", "content": [IMAGE]}]}, 422, "messages.0.content.0"),
        ({"thinking": {"type": "between_tools"}}, 422, "thinking"),
        ({"messages": []}, 400, "messages is empty"),
        ({"messages": [{"role": "user", "content": []}]}, 400, "messages"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, 422, "'web_search_20250305'"),
        ({"tools": [{"name": "x"}]}, 400, "tools.0.input_schema is missing"),
        ({"tools": [NOW, NOW]}, 400, "'now' is there twice"),
        ({"tool_choice": {"type": "tool", "name": "no"}, "tools": [NOW]}, 400, "'no'"),
        ({"tool_choice": {"type": "any"}}, 400, "there are no tools"),
        ({"max_tokens": None}, 400, "max_tokens is missing"),
        ({"max_tokens": 0}, 400, "max_tokens"),
        ({"temperature": 1.5}, 400, "temperature"),
        ({"mcp_servers": [{"name": "x"}]}, 422, "mcp_servers"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, 422, "thinking"),
    ],
)
async def test_what_is_not_served_is_refused_by_name(open_api: Any, fields: Any, status: int, words: str) -> None:
    async with open_api() as api:
        answer = await api.post(PATH, body(**fields) if "messages" not in fields else {**body(), **fields})
        assert api.backend.requests == []
    document = json.loads(answer.body)
    assert (answer.status, document["error"]["type"]) == (status, "invalid_request_error")
    assert words in document["error"]["message"]


@pytest.mark.spec("MSG-6")
async def test_a_choice_of_tools_forces_or_forbids_calls(open_api: Any) -> None:
    async with open_api(saying("x"), **SERVED) as api:
        for choice in ({"type": "any"}, {"type": "tool", "name": "add"}, {"type": "none"}):
            await api.post(PATH, body(tools=[NOW, ADD], tool_choice=choice))
        whole, named, none = api.backend.requests
    assert len(source_of(whole.grammar).schemas) == 2
    assert len(source_of(named.grammar).schemas) == 1
    assert none.grammar is None
    assert not bytes(none.prompt).startswith(b"now;")
    one, _ = await ask(
        open_api, TWO_CALLS, tools=[NOW, ADD], tool_choice={"type": "auto", "disable_parallel_tool_use": True}
    )
    assert [block["type"] for block in one["content"]] == ["thinking", "text", "tool_use"]


@pytest.mark.spec("MSG-7", "MSG-1")
async def test_thinking_sets_the_switch_of_the_template(open_api: Any) -> None:
    async with open_api(saying("x"), **SERVED) as api:
        plain = {"type": "enabled", "budget_tokens": 1024}
        answers = [
            await api.post(PATH, body(thinking=choice))
            for choice in (plain, {"type": "disabled"}, {"type": "adaptive"})
        ]
        strict = await api.post(PATH, body(thinking=plain), ("X-TL-Strict", "1"))
        odd = await api.post(PATH, body([{"type": "text", "text": "x", "odd": 1}], what=1))
        prompts = [bytes(request.prompt) for request in api.backend.requests]
    assert [prompt.endswith(b"<think>") for prompt in prompts[:3]] == [True, False, False]
    assert [answer.headers.get("x-tl-ignored") for answer in answers] == ["thinking.budget_tokens", None, None]
    assert strict.status == 400
    assert odd.headers.get("x-tl-ignored") == "what, messages[].content[].odd"


@pytest.mark.spec("MSG-8")
@pytest.mark.parametrize("nested", [True, False])
async def test_a_format_is_a_schema_that_the_answer_follows(open_api: Any, nested: bool) -> None:
    form = {"type": "json_schema", "schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    fields = {"output_config": {"format": form}} if nested else {"output_format": form}
    async with open_api(saying("x"), **SERVED) as api:
        await api.post(PATH, body(**fields))
        (request,) = api.backend.requests
    (placed,) = source_of(request.grammar).schemas.values()
    assert "integer" in str(placed)


@pytest.mark.spec("MSG-9")
async def test_a_version_that_is_not_served_is_refused(open_api: Any) -> None:
    async with open_api() as api:
        statuses = [
            (await api.post(PATH, body(), ("anthropic-version", v))).status
            for v in ("2023-06-01", "2026-10-21", "2031-01-01")
        ]
    assert statuses == [200, 200, 400]


@pytest.mark.spec("MSG-14")
@pytest.mark.parametrize("path", [PATH, PATH + "/nothing", PATH + "/count_tokens"])
async def test_every_error_below_the_path_has_the_form_of_this_api(open_api: Any, path: str) -> None:
    async with open_api() as api:
        answer = await api.post(path, b"{")
    document = json.loads(answer.body)
    assert (document["type"], document["request_id"]) == ("error", answer.headers.get("request-id"))
    assert document["error"]["type"] == ("not_found_error" if path.endswith("nothing") else "invalid_request_error")
    anthropic.types.ErrorResponse.model_validate(document)


@pytest.mark.spec("MSG-15")
async def test_a_fault_after_the_head_is_an_error_event(open_api: Any) -> None:
    async with open_api(ScriptedBackend(Script(failure=EngineFailed("the engine stopped"), fail_before=1))) as api:
        events = events_of(await api.post(PATH, body(stream=True)))
    assert [event["type"] for event in events][:1] == ["message_start"]
    assert events[-1]["error"] == {"type": "api_error", "message": "the engine stopped"}


@pytest.mark.spec("MSG-13")
async def test_a_quiet_stream_has_pings(open_api: Any, autojump_clock: Any) -> None:
    async with open_api(ScriptedBackend(Script(token_s=20.0))) as api:
        events = events_of(await api.post(PATH, body(stream=True)))
    assert "ping" in [event["type"] for event in events]
    assert rebuilt([event for event in events if event["type"] != "ping"])["content"][0]["text"] == "bcd"


@pytest.mark.spec("MSG-16")
async def test_a_count_is_that_of_the_same_body(open_api: Any) -> None:
    async with open_api() as api:
        counted = json.loads(
            (await api.post(PATH + "/count_tokens", {"model": "succ", "messages": body("abc")["messages"]})).body
        )
        message = json.loads((await api.post(PATH, body("abc"))).body)
    assert counted == {"input_tokens": 3}
    assert message["usage"]["input_tokens"] == 3


@pytest.mark.spec("MSG-18")
async def test_models_have_the_form_of_this_api_when_its_version_is_sent(open_api: Any) -> None:
    async with open_api() as api:
        answer = json.loads((await api.get("/v1/models", ("anthropic-version", "2023-06-01"))).body)
        one = json.loads((await api.get("/v1/models/succ", ("anthropic-version", "2023-06-01"))).body)
    assert (answer["data"], answer["has_more"], answer["first_id"]) == ([one], False, "succ")
    assert (one["id"], one["created_at"], one["max_input_tokens"]) == ("succ", "2020-09-13T12:26:40Z", 64)
    anthropic.types.ModelInfo.model_validate(one)
