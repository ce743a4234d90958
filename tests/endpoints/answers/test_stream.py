"""Streams: their events, order, writes and times."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import trio
import trio.testing
from openai.types.chat import ChatCompletionChunk

from tests.kit.scripted_backend import QUEUE, Script, ScriptedBackend
from tlserve.config.tables.network import HttpSettings
from tlserve.errors import DrainCut, EngineFailed, NoCapacity
from tlserve.http.client.connection import HttpResponse


def payloads(body: bytes) -> list[str]:
    """Return the payloads after `data: `, and check that there are only events and pings."""
    events = body.decode().split("\n\n")
    assert events.pop() == ""
    assert all(event.startswith("data: ") or event == ": ping" for event in events)
    assert all("\n" not in event for event in events)
    return [event[6:] for event in events if event != ": ping"]


def chunks(answer: HttpResponse) -> list[dict[str, Any]]:
    *documents, done = payloads(answer.body)
    assert done == "[DONE]"
    for document in documents:
        ChatCompletionChunk.model_validate_json(document, strict=True)
    return [json.loads(document) for document in documents]


def contents(documents: list[dict[str, Any]]) -> Iterator[str]:
    return (choice["delta"]["content"] for document in documents for choice in document["choices"])


@pytest.mark.spec("API-15", "API-24")
async def test_a_stream_is_the_role_the_pieces_with_the_finish_on_the_last_and_done(open_api) -> None:
    async with open_api() as api:
        answer = await api.chat(stream=True)
    assert answer.status == 200
    assert answer.headers.get("content-type", "").startswith("text/event-stream")
    documents = chunks(answer)
    assert [document["choices"][0]["delta"] for document in documents] == [
        {"role": "assistant", "content": ""},
        {"content": "b"},
        {"content": "c"},
        {"content": "d"},
    ]
    assert [document["choices"][0]["finish_reason"] for document in documents] == [None, None, None, "length"]
    assert {document["id"] for document in documents} == {"chatcmpl-id1"}
    assert {document["system_fingerprint"] for document in documents} == {"fp_scripted"}
    assert {document["object"] for document in documents} == {"chat.completion.chunk"}


# --- usage ---------------------------------------------------------------------------------------------------


@pytest.mark.spec("CASE-4", "API-24", "CASE-49", "API-112")
async def test_the_usage_chunk_comes_last_without_choices_and_the_others_have_null(open_api) -> None:
    async with open_api() as api:
        *others, last = chunks(await api.chat(stream=True, stream_options={"include_usage": True}))
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 4
    assert [document["usage"] for document in others] == [None] * 4


@pytest.mark.spec("CASE-4", "API-112")
@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
async def test_usage_that_was_not_requested_is_not_sent(open_api, options: Any) -> None:
    async with open_api() as api:
        documents = chunks(await api.chat(stream=True, stream_options=options))
    assert len(documents) == 4
    assert not any("usage" in document for document in documents)


@pytest.mark.spec("API-8")
@pytest.mark.parametrize("stream", [False, None])
async def test_stream_options_without_a_stream_are_refused(open_api, stream: Any) -> None:
    async with open_api() as api:
        answer = await api.chat(stream=stream, stream_options={"include_usage": True})
    assert (answer.status, json.loads(answer.body)["error"]["param"]) == (400, "stream_options")


# --- the whole answer is its joined stream --------------------------------------------------------------


@pytest.mark.spec("API-25")
@pytest.mark.parametrize("batch_tokens", [1, 3, 99])
@pytest.mark.parametrize(
    "fields",
    [{"max_tokens": 12}, {"stop": ["de"], "max_tokens": 10}, {"stop": ["bcx", "defg", "fgh"], "max_tokens": 9}],
)
async def test_the_joined_pieces_are_the_whole_answer(open_api, batch_tokens: int, fields: dict[str, Any]) -> None:
    async with open_api(ScriptedBackend(Script(batch_tokens=batch_tokens))) as api:
        whole = json.loads((await api.chat(**fields)).body)
        documents = chunks(await api.chat(**fields, stream=True, stream_options={"include_usage": True}))
    assert "".join(contents(documents)) == whole["choices"][0]["message"]["content"]
    assert documents[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert documents[-1]["usage"] == whole["usage"]


@pytest.mark.spec("API-25")
async def test_a_part_of_a_stop_string_is_never_sent_before_it_is_clear(open_api) -> None:
    gates = {3: trio.Event()}
    async with open_api(ScriptedBackend(Script(gates=gates))) as api:
        stream = api.server.connect_raw()
        await stream.send_all(raw_chat(stop=["de"], max_tokens=10))
        await trio.testing.wait_all_tasks_blocked()
        before = bytes(await stream.receive_some(1 << 20))
        gates[3].set()
        await trio.testing.wait_all_tasks_blocked()
        after = bytes(await stream.receive_some(1 << 20))
    assert b'"content":"c"' in before
    assert b"[DONE]" in after
    assert b'"content":"d' not in before + after


def raw_chat(**fields: Any) -> bytes:
    """Return the bytes of a request for a stream."""
    body = {"model": "succ", "messages": [{"role": "user", "content": "a"}], "max_tokens": 3, "stream": True, **fields}
    data = json.dumps(body).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data


# --- time ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-23")
async def test_the_head_and_the_role_are_sent_when_the_prefill_starts(open_api) -> None:
    gates = {QUEUE: trio.Event(), 0: trio.Event()}
    async with open_api(ScriptedBackend(Script(gates=gates))) as api, trio.open_nursery() as nursery:
        received = bytearray()
        stream = api.server.connect_raw()

        async def read() -> None:
            async for data in stream:
                received.extend(data)

        nursery.start_soon(read)
        await stream.send_all(raw_chat())
        await trio.testing.wait_all_tasks_blocked()
        assert received == b""
        gates[QUEUE].set()
        await trio.testing.wait_all_tasks_blocked()
        sent = bytes(received)
        assert sent.startswith(b"HTTP/1.1 200")
        assert sent.count(b"data: ") == sent.count(b'"delta":{"role":"assistant","content":""}') == 1
        gates[0].set()
        await trio.testing.wait_all_tasks_blocked()
        assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        nursery.cancel_scope.cancel()


@pytest.mark.spec("API-26")
async def test_all_pieces_that_are_ready_together_are_one_write(open_api) -> None:
    async with open_api(ScriptedBackend(Script(batch_tokens=99))) as api:
        stream = api.server.connect_raw()
        await stream.send_all(raw_chat())
        await trio.testing.wait_all_tasks_blocked()
        received = bytes(await stream.receive_some(1 << 20))
    body = received.partition(b"\r\n\r\n")[2]
    assert body.count(b"data: ") == 5
    assert body.count(b"\r\n") == 4  # one chunk with every event, and the end of the body: two line ends each


@pytest.mark.spec("API-28")
async def test_a_long_prefill_is_bridged_by_pings_that_are_comments(
    open_api, autojump_clock: trio.testing.MockClock
) -> None:
    settings = HttpSettings(ping_interval_ms=15_000)
    async with open_api(ScriptedBackend(Script(prefill_s=50)), settings) as api:
        answer = await api.chat(stream=True)
    assert answer.body.count(b": ping\n\n") == 3
    assert "".join(contents(chunks(answer))) == "bcd"


@pytest.mark.spec("API-23")
async def test_nothing_is_sent_while_a_request_is_queued_not_even_a_ping(
    open_api, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_api(ScriptedBackend(Script(queue_s=500))) as api:
        answer = await api.chat(stream=True)
    assert b": ping" not in answer.body


# --- faults --------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-23")
async def test_a_fault_before_the_head_is_an_ordinary_error(open_api) -> None:
    script = Script(queue_s=1, failure=NoCapacity("no room came free", retry_after_s=3), fail_before=QUEUE)
    async with open_api(ScriptedBackend(script)) as api:
        answer = await api.chat(stream=True)
    assert (answer.status, answer.headers.get("retry-after")) == (503, "3")
    assert answer.headers.get("content-type") == "application/json"
    assert json.loads(answer.body)["error"]["code"] == "no_capacity"


@pytest.mark.spec("API-27")
@pytest.mark.parametrize(
    ("failure", "code", "message"),
    [
        (EngineFailed("the engine failed"), "engine_failed", "the engine failed"),
        (DrainCut("the server had to stop"), "draining", "the server had to stop"),
        (ZeroDivisionError("secret"), "internal_error", "the request is not at fault"),
    ],
)
async def test_a_fault_after_the_head_is_one_error_event_and_done_without_a_finish(
    open_api, failure: Exception, code: str, message: str
) -> None:
    backend = ScriptedBackend(Script(failure=failure, fail_before=2))
    async with open_api(backend) as api:
        answer = await api.chat(stream=True, stream_options={"include_usage": True})
        record = api.records[-1]
    *before, error, done = payloads(answer.body)
    assert done == "[DONE]"
    assert [json.loads(document)["choices"][0]["finish_reason"] for document in before] == [None] * 3
    fields = json.loads(error)["error"]
    assert set(fields) == {"message", "type", "param", "code"}
    assert (fields["type"], fields["code"]) == ("server_error", code)
    assert message in fields["message"]
    assert "secret" not in fields["message"]
    assert (record.status, record.finish, record.completion_tokens) == (200, "error", 2)


async def test_a_fault_in_a_whole_answer_is_an_error_whatever_was_generated(open_api) -> None:
    async with open_api(ScriptedBackend(Script(failure=EngineFailed("it broke"), fail_before=2))) as api:
        answer = await api.chat()
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (500, "engine_failed")


# --- leaving -------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-29")
@pytest.mark.parametrize("gate", [QUEUE, 0, 2])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("leave", ["disconnect", "half_close"])
async def test_a_client_that_leaves_aborts_its_request_and_is_logged_as_499(
    open_api, gate: int, stream: bool, leave: str
) -> None:
    backend = ScriptedBackend(Script(gates={gate: trio.Event()}))
    async with open_api(backend) as api:
        client = api.server.connect()
        await client.stream.send_all(raw_chat(stream=stream))
        await trio.testing.wait_all_tasks_blocked()
        assert backend.counts.open == 1
        await getattr(client, leave)()
        await trio.testing.wait_all_tasks_blocked()
        assert (backend.counts.open, backend.counts.aborted) == (0, 1)
        assert [record.status for record in api.records] == [499]


@pytest.mark.spec("API-30")
async def test_the_backend_is_left_before_the_last_write_to_a_slow_reader(open_api) -> None:
    backend = ScriptedBackend(Script(batch_tokens=99))
    async with open_api(backend) as api:
        stream = api.server.connect_raw(lockstep=True)
        await stream.send_all(raw_chat())
        head = b""
        while b"\r\n\r\n" not in head:
            head += await stream.receive_some(1)
        await trio.testing.wait_all_tasks_blocked()
        assert backend.counts.open == 0
        await trio.aclose_forcefully(stream)
