"""Ollama's API over an exact text from the backend: calls, thinking, formats, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.endpoints.answers.test_tools import ADD, NOW, SERVED, TWO_CALLS, saying, source_of
from tests.kit.scripted_backend import Script, ScriptedBackend
from tlserve.errors import EngineFailed

CHAT = "/api/chat"
USER_A = [{"role": "user", "content": "a"}]


def lines_of(body: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in body.splitlines()]


async def ask(open_api: Any, text: str, **fields: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the whole answer, and the lines of the same answer."""
    async with open_api(saying(text), **SERVED) as api:
        whole = await api.post(CHAT, {"model": "succ", "messages": USER_A, "stream": False, **fields})
        streamed = await api.post(CHAT, {"model": "succ", "messages": USER_A, **fields})
    assert (whole.status, streamed.status) == (200, 200), whole.body
    assert streamed.headers.get("content-type") == "application/x-ndjson"
    return json.loads(whole.body), lines_of(streamed.body)


@pytest.mark.spec("OLL-9", "OLL-10", "OLL-3")
async def test_calls_and_thinking_come_whole_and_in_lines(open_api: Any) -> None:
    whole, lines = await ask(open_api, TWO_CALLS, tools=[NOW, ADD])
    message = whole["message"]
    assert (message["content"], message["thinking"]) == ("Let me see.", "I need two.")
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]
    assert calls == [("now", {}), ("add", {"a": 1, "b": 2})]
    assert "".join(line["message"]["content"] for line in lines) == message["content"]
    assert "".join(line["message"].get("thinking", "") for line in lines) == message["thinking"]
    (called,) = [line for line in lines if "tool_calls" in line["message"]]
    functions = [[call["function"] for call in said["tool_calls"]] for said in (called["message"], message)]
    assert functions[0] == functions[1]
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    assert (whole["done_reason"], lines[-1]["done_reason"]) == ("stop", "stop")


@pytest.mark.spec("OLL-9")
async def test_results_belong_to_the_calls_of_their_tools(open_api: Any) -> None:
    calls: list[Any] = [{"function": {"name": name, "arguments": {}}} for name in ("now", "add")]
    messages = [
        *USER_A,
        {"role": "assistant", "content": "", "tool_calls": calls},
        {"role": "tool", "tool_name": "add", "content": "3"},
        {"role": "tool", "tool_name": "now", "content": "noon"},
    ]
    async with open_api(saying("!"), **SERVED) as api:
        await api.post(CHAT, {"model": "succ", "messages": messages})
        (request,) = api.backend.requests
    assert bytes(request.prompt).decode().endswith("tool: 3call_1\ntool: nooncall_0\nassistant: ")


@pytest.mark.spec("OLL-11")
@pytest.mark.parametrize("form", ["json", {"type": "object", "properties": {"a": {"type": "integer"}}}])
async def test_a_format_constrains_the_answer(open_api: Any, form: Any) -> None:
    async with open_api(saying("x"), **SERVED) as api:
        await api.post(CHAT, {"model": "succ", "messages": USER_A, "format": form})
        wrong = await api.post(CHAT, {"model": "succ", "messages": USER_A, "format": "xml"})
        (request,) = api.backend.requests
    assert len(source_of(request.grammar).schemas) == 1
    assert (wrong.status, "format" in json.loads(wrong.body)["error"]) == (400, True)


@pytest.mark.spec("OLL-10")
async def test_think_sets_the_switch_of_the_template(open_api: Any) -> None:
    async with open_api(saying("x"), **SERVED) as api:
        for think in (True, False):
            await api.post(CHAT, {"model": "succ", "messages": USER_A, "think": think})
        refused = await api.post(CHAT, {"model": "succ", "messages": USER_A, "think": "high"})
        ends = [bytes(request.prompt).endswith(b"<think>") for request in api.backend.requests]
    assert (ends, refused.status) == ([True, False], 422)


@pytest.mark.spec("OLL-12")
async def test_options_are_honoured_refused_or_named(open_api: Any) -> None:
    options = {"num_predict": 2, "seed": 5, "repeat_penalty": 1.5, "stop": "z", "num_gpu": 1, "num_ctx": 8, "odd": 1}
    async with open_api() as api:
        answer = await api.post(CHAT, {"messages": USER_A, "options": options, "stream": False})
        refused = await api.post(CHAT, {"messages": USER_A, "options": {"tfs_z": 0.5}})
        (request,) = api.backend.requests
    assert (request.max_tokens, request.seed, request.sampling.repetition_penalty) == (2, 5, 1.5)
    assert answer.headers.get("x-tl-ignored") == "options.odd, options.num_ctx"
    assert (refused.status, json.loads(refused.body)["error"].startswith("options.tfs_z")) == (422, True)


@pytest.mark.spec("OLL-8")
async def test_a_fault_after_the_head_is_the_last_line(open_api: Any) -> None:
    async with open_api(ScriptedBackend(Script(failure=EngineFailed("the engine stopped"), fail_before=1))) as api:
        answer = await api.post(CHAT, {"messages": USER_A})
        unknown = await api.post("/api/nothing", {})
    assert lines_of(answer.body)[-1] == {"error": "the engine stopped"}
    assert (unknown.status, list(json.loads(unknown.body))) == (404, ["error"])


@pytest.mark.spec("OLL-6")
async def test_many_vectors_that_a_thread_writes_come_in_order(open_api: Any) -> None:
    texts = [f"text {number}" for number in range(500)]
    async with open_api() as api:
        answer = await api.post("/api/embed", {"model": "succ", "input": texts})
    assert answer.status == 200, answer.body
    document = json.loads(answer.body)
    assert len(document["embeddings"]) == len(texts)
    assert document["total_duration"] > 0
