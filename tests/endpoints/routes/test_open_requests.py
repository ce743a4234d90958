"""GET /v1/requests, GET and DELETE /v1/requests/{id}."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from tests.kit.engine.local_backend import local_backend
from tests.kit.fleet.http_fleet import http_fleet
from tests.kit.http.guarded_api import RIGHT, guarded
from tests.kit.http.memory_http import MemoryServer
from tests.kit.scripted_backend import QUEUE, Script, ScriptedBackend
from tlserve.generation import Backend
from tlserve.http.client.connection import HttpResponse

ID = ("X-Request-Id", "mine/1")
PATH = "/v1/requests/mine%2F1"
CHAT, COMPLETIONS, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/messages"
OLLAMA, RESPONSES = "/api/chat", "/v1/responses"
TURNS = {"model": "succ", "messages": [{"role": "user", "content": "a"}], "max_tokens": 3}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: TURNS,
    COMPLETIONS: {"model": "succ", "prompt": "a", "max_tokens": 3, "n": 2},
    MESSAGES: TURNS,
    OLLAMA: {"model": "succ", "messages": TURNS["messages"], "stream": False},
    RESPONSES: {"model": "succ", "input": "a", "max_output_tokens": 3},
}


@attrs.define
class Asked:
    """A request on a connection of its own; `answer` when it has ended."""

    answer: HttpResponse | None = None
    ended: trio.Event = attrs.field(factory=trio.Event)

    @property
    def told(self) -> HttpResponse:
        assert self.answer is not None
        return self.answer


async def ask(
    nursery: trio.Nursery, server: MemoryServer, path: str, body: dict[str, Any], *headers: tuple[str, str]
) -> Asked:
    """Send a request, and return when it waits at its gate."""
    asked, client = Asked(), server.connect()

    async def run() -> None:
        asked.answer = await client.request("POST", path, headers, json.dumps(body).encode())
        asked.ended.set()

    nursery.start_soon(run)
    await trio.testing.wait_all_tasks_blocked()
    return asked


def held(gate: int) -> ScriptedBackend:
    """Return a backend that waits forever before the token `gate`."""
    return ScriptedBackend(Script(gates={gate: trio.Event()}))


@contextmanager
def everything_is_freed(backend: ScriptedBackend, aborted: int = 1) -> Iterator[None]:
    yield
    assert (backend.counts.open, backend.counts.aborted) == (0, aborted)


# --- a whole answer ---------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-204")
@pytest.mark.parametrize("gate", [QUEUE, 1])
@pytest.mark.parametrize("path", BODIES)
async def test_a_cancelled_answer_is_an_error_that_clients_do_not_retry(
    open_api, nursery, path: str, gate: int
) -> None:
    backend = held(gate)
    async with open_api(backend) as api:
        asked = await ask(nursery, api.server, path, BODIES[path], ID)
        with everything_is_freed(backend, BODIES[path].get("n", 1)):
            cancelled = await api.delete(PATH)
        await trio.testing.wait_all_tasks_blocked()
        gone = await api.delete(PATH)
    answer, error = asked.told, json.loads(asked.told.body)["error"]
    assert (answer.status, cancelled.status, gone.status) == (499, 200, 404)
    assert "was cancelled by its id" in (error if path == OLLAMA else error["message"])
    if path not in (OLLAMA, MESSAGES):
        assert (error["type"], error["code"]) == ("invalid_request_error", "cancelled")
    assert answer.headers.get("x-should-retry") is None
    assert json.loads(cancelled.body)["state"] == "cancelled"
    assert next(record for record in api.records if record.path == path).error == "cancelled"


@pytest.mark.spec("API-204")
async def test_a_request_is_cancelled_while_it_waits_for_its_vectors(open_api, nursery) -> None:
    async with open_api(ScriptedBackend(Script(queue_s=1e9))) as api:
        asked = await ask(nursery, api.server, "/v1/embeddings", {"input": "a"}, ID)
        await api.delete(PATH)
        await trio.testing.wait_all_tasks_blocked()
    assert asked.told.status == 499


@pytest.mark.spec("API-204")
async def test_others_continue_and_the_connection_serves_on(open_api, nursery) -> None:
    gate = trio.Event()
    async with open_api(ScriptedBackend(Script(gates={1: gate}))) as api:
        first = await ask(nursery, api.server, CHAT, TURNS, ID)
        second = await ask(nursery, api.server, CHAT, TURNS, ("X-Request-Id", "other"))
        await api.delete(PATH)
        gate.set()
        await trio.testing.wait_all_tasks_blocked()
        third = await api.chat()
    assert (first.told.status, second.told.status, third.status) == (499, 200, 200)
    assert json.loads(second.told.body)["choices"][0]["message"]["content"] == "bcd"


# --- a stream ---------------------------------------------------------------------------------------------------------


ENDS = {
    CHAT: b'data: {"error":{"message":"the request was cancelled by its id","type":"invalid_request_error","param":null,'
    b'"code":"cancelled"}}\n\ndata: [DONE]\n\n',
    COMPLETIONS: b'"code":"cancelled"}}\n\ndata: [DONE]\n\n',
    MESSAGES: b'event: error\ndata: {"type":"error","error":{"type":"invalid_request_error",'
    b'"message":"the request was cancelled by its id"},"request_id":"mine/1"}\n\n',
    OLLAMA: b'{"error":"the request was cancelled by its id"}\n',
}


@pytest.mark.spec("API-204")
@pytest.mark.parametrize("path", ENDS)
async def test_a_cancelled_stream_ends_with_the_error_event_of_its_dialect(open_api, nursery, path: str) -> None:
    backend = held(1)
    async with open_api(backend) as api:
        asked = await ask(nursery, api.server, path, {**BODIES[path], "stream": True}, ID)
        with everything_is_freed(backend, BODIES[path].get("n", 1)):
            await api.delete(PATH)
        await trio.testing.wait_all_tasks_blocked()
    assert asked.told.status == 200
    assert b'"b"' in asked.told.body
    assert asked.told.body.endswith(ENDS[path])


@pytest.mark.spec("API-204")
async def test_a_cancelled_stream_of_a_response_fails_with_its_code(open_api, nursery) -> None:
    async with open_api(held(1)) as api:
        asked = await ask(nursery, api.server, RESPONSES, {**BODIES[RESPONSES], "stream": True}, ID)
        await api.delete(PATH)
        await trio.testing.wait_all_tasks_blocked()
    error, failed = (
        json.loads(event.partition("data: ")[2]) for event in asked.told.body.decode().split("\n\n")[-3:-1]
    )
    assert (error["type"], error["code"]) == ("error", "cancelled")
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")


@pytest.mark.spec("API-204")
@pytest.mark.parametrize("progress", [(), (("X-TL-Progress", "1"),)])
async def test_a_stream_is_cancelled_in_the_queue_with_a_status_unless_it_has_begun(
    open_api, nursery, progress: tuple[tuple[str, str], ...]
) -> None:
    async with open_api(held(QUEUE)) as api:
        asked = await ask(nursery, api.server, CHAT, {**TURNS, "stream": True}, ID, *progress)
        await api.delete(PATH)
        await trio.testing.wait_all_tasks_blocked()
    assert asked.told.status == (200 if progress else 499)
    assert b'"code":"cancelled"' in asked.told.body


@pytest.mark.spec("API-204")
async def test_a_write_to_a_slow_reader_is_not_cut(open_api) -> None:
    backend = ScriptedBackend()
    body = json.dumps({**TURNS, "stream": True}).encode()
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine/1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    async with open_api(backend) as api:
        stream = api.server.connect_raw(lockstep=True)
        await stream.send_all(head % (CHAT.encode(), len(body)) + body)
        await trio.testing.wait_all_tasks_blocked()
        assert (await api.delete(PATH)).status == 200  # the head is being written
        assert (await api.delete(PATH)).status == 404
        got = b""
        while more := await stream.receive_some(7):
            got += bytes(more)
    assert got.startswith(b"HTTP/1.1 200")
    assert got.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
    assert got.count(b'"code":"cancelled"') == 1
    assert backend.counts.open == 0


async def test_the_last_write_of_a_stream_is_not_cancelled(open_api) -> None:
    body = json.dumps({**TURNS, "stream": True, "max_tokens": 1}).encode()
    head = b"POST %b HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine/1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    async with open_api(ScriptedBackend(Script(batch_tokens=9))) as api:
        stream = api.server.connect_raw(lockstep=True)
        await stream.send_all(head % (CHAT.encode(), len(body)) + body)
        got = b""
        while b"\r\n\r\n" not in got:
            got += bytes(await stream.receive_some(1))
        await trio.testing.wait_all_tasks_blocked()
        refused = await api.delete(PATH)
        while more := await stream.receive_some(4096):
            got += bytes(more)
    assert refused.status == 404
    assert b"[DONE]" in got
    assert b"error" not in got


# --- the state of a request -------------------------------------------------------------------------------------------


@pytest.mark.spec("API-203")
@pytest.mark.parametrize(
    ("script", "state", "tokens"),
    [
        (Script(gates={QUEUE: trio.Event()}), "queued", None),
        (Script(gates={0: trio.Event()}), "prefill", None),
        (Script(gates={2: trio.Event()}), "decode", 2),
    ],
)
async def test_a_request_reports_its_state(open_api, nursery, script: Script, state: str, tokens: int | None) -> None:
    async with open_api(ScriptedBackend(script)) as api:
        await ask(nursery, api.server, CHAT, TURNS, ID)
        shown = json.loads((await api.get(PATH)).body)
        listed = json.loads((await api.get("/v1/requests")).body)
        nursery.cancel_scope.cancel()
    assert (shown["id"], shown["path"], shown["model"], shown["created"]) == ("mine/1", CHAT, "succ", 1_700_000_000)
    assert (shown["state"], shown["prompt_tokens"]) == (state, 1)
    assert (shown["completion_tokens"] or None) == tokens
    assert (shown["queue_ms"] is None, shown["first_token_ms"] is None) == (state == "queued", state != "decode")
    assert [request["id"] for request in listed["data"]] == ["mine/1"]


@pytest.mark.spec("API-203")
async def test_a_request_whose_body_arrives_is_listed_and_can_be_cancelled(open_api) -> None:
    async with open_api() as api:
        stream = api.server.connect_raw()
        await stream.send_all(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{")
        await trio.testing.wait_all_tasks_blocked()
        (listed,) = json.loads((await api.get("/v1/requests")).body)["data"]
        await api.delete(f"/v1/requests/{listed['id']}")
        await trio.testing.wait_all_tasks_blocked()
        answer = bytes(await stream.receive_some(4096))
    assert listed["state"] == "preparing"
    assert answer.startswith(b"HTTP/1.1 499")


@pytest.mark.spec("API-203")
async def test_nothing_is_known_of_a_request_that_has_ended(open_api) -> None:
    async with open_api() as api:
        assert (await api.chat("a", ID)).status == 200
        answer = await api.get(PATH)
        listed = await api.get("/v1/requests")
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (404, "request_not_found")
    assert json.loads(listed.body) == {"object": "list", "data": []}


# --- owners -----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-202")
async def test_requests_with_one_id_are_cancelled_together(open_api, nursery) -> None:
    async with open_api(held(1)) as api:
        asked = [await ask(nursery, api.server, CHAT, TURNS, ID) for _ in range(2)]
        assert len(json.loads((await api.get("/v1/requests")).body)["data"]) == 2
        await api.delete(PATH)
        await trio.testing.wait_all_tasks_blocked()
    assert [one.told.status for one in asked] == [499, 499]


@pytest.mark.spec("API-202")
async def test_a_key_sees_and_cancels_its_own_requests_alone(nursery) -> None:
    gate = trio.Event()
    other = ("Authorization", "Bearer other")
    async with guarded(script=Script(gates={1: gate}), others=["other"]) as api:
        own = await ask(nursery, api.server, CHAT, TURNS, ID, RIGHT)
        theirs = await ask(nursery, api.server, CHAT, TURNS, ID, other)
        unknown = await api.ask("DELETE", "/v1/requests/x", other)
        listed = await api.ask("GET", "/v1/requests", other)
        keyless = await api.ask("DELETE", PATH)
        cancelled = await api.ask("DELETE", PATH, other)
        await trio.testing.wait_all_tasks_blocked()
        gate.set()
        await trio.testing.wait_all_tasks_blocked()
    assert (unknown.status, keyless.status, cancelled.status) == (404, 401, 200)
    assert len(json.loads(listed.body)["data"]) == 1
    assert (own.told.status, theirs.told.status) == (200, 499)


# --- engines ----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-204")
@pytest.mark.parametrize("backend_of", [local_backend, http_fleet], ids=["engine", "fleet"])
async def test_an_engine_frees_the_blocks_and_its_other_answers_stay(
    open_api, nursery, backend_of: Callable[[], AbstractAsyncContextManager[Backend]]
) -> None:
    body = {"prompt": "a", "max_tokens": 100, "logprobs": 1}
    async with backend_of() as backend, open_api(backend) as api:
        alone = json.loads((await api.post(COMPLETIONS, body)).body)
        stream = api.server.connect_raw(lockstep=True)
        data = json.dumps({**body, "stream": True, "max_tokens": 4000}).encode()
        await stream.send_all(
            b"POST %b HTTP/1.1\r\nHost: x\r\nX-Request-Id: mine/1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
            % (COMPLETIONS.encode(), len(data))
            + data
        )
        got = b""
        while b"data: " not in got:
            got += bytes(await stream.receive_some(4096))
        other = await ask(nursery, api.server, COMPLETIONS, body)
        cancelled = await api.delete(PATH)
        while more := await stream.receive_some(1 << 16):
            got += bytes(more)
        await other.ended.wait()
        await backend.drain()
    assert cancelled.status == 200
    assert got.endswith(b'"code":"cancelled"}}\n\ndata: [DONE]\n\n\r\n0\r\n\r\n')
    assert json.loads(other.told.body)["choices"] == alone["choices"]
