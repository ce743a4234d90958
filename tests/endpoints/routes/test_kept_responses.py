"""Responses of earlier requests over the API: kept, found, listed, deleted, and made in the background."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from openai.types.responses.response_item_list import ResponseItemList

from tests.endpoints.answers.test_tools import SERVED, saying
from tests.endpoints.routes.test_responses import ADD, NOW, PATH, body, events_of, response_of
from tests.kit.scripted_backend import Script, ScriptedBackend
from tlserve.access.door import Door
from tlserve.access.keys import ApiKey, KeyRing, Limits, digest_of
from tlserve.endpoints.responses.kept import KeptResponses
from tlserve.errors import DrainCut, EngineFailed, Overloaded
from tlserve.http.client.connection import ResponseBroken
from tlserve.responses.store import ResponseStore

NOW_S = 1_700_000_000.5
KEYS = {name: f"sk-a-long-enough-key-of-{name}" for name in ("ann", "bob")}
Open = Callable[..., AbstractAsyncContextManager[Any]]


def key(name: str) -> tuple[str, str]:
    return ("Authorization", f"Bearer {KEYS[name]}")


def door(**limits: int) -> Door:
    keys = [ApiKey(name=name, digest=digest_of(own), limits=Limits(**limits)) for name, own in KEYS.items()]
    return Door(KeyRing(keys))


@pytest.fixture
def open_kept(open_api: Any) -> Open:
    @asynccontextmanager
    async def open_it(backend: ScriptedBackend | None = None, path: str = "", **options: Any) -> AsyncIterator[Any]:
        store = ResponseStore(path, max_bytes=1 << 20, max_age_s=100.0)
        kept = KeptResponses(store, lambda: NOW_S)
        async with trio.open_nursery() as nursery:
            await nursery.start(kept.run)
            async with open_api(backend, kept=kept, **options) as api:
                yield api
            nursery.cancel_scope.cancel()

    return open_it


async def finished(api: Any, name: str, *headers: tuple[str, str]) -> dict[str, Any]:
    """Poll a response until it has ended."""
    while True:
        response = response_of(await api.get(f"{PATH}/{name}", *headers))
        if response["status"] not in ("queued", "in_progress"):
            return response
        await trio.testing.wait_all_tasks_blocked()


@pytest.mark.spec("RSP-20")
@pytest.mark.parametrize("stream", [True, False])
async def test_a_response_is_found_until_it_is_deleted(open_kept: Open, stream: bool) -> None:
    async with open_kept(saying("<think>a</think>b"), **SERVED) as api:
        answer = await api.post(PATH, body(stream=stream, tools=[NOW]))
        made = events_of(answer)[-1]["response"] if stream else response_of(answer)
        where = f"{PATH}/{made['id']}"
        found = response_of(await api.get(where))
        deleted = await api.delete(where)
        gone = [await api.get(where), await api.delete(where), await api.get(where + "/input_items")]
    assert found == made
    assert made["store"] is True
    assert json.loads(deleted.body) == {"id": made["id"], "object": "response", "deleted": True}
    assert [answer.status for answer in gone] == [404] * 3
    assert json.loads(gone[0].body)["error"]["code"] == "response_not_found"


@pytest.mark.spec("RSP-20")
async def test_a_response_is_not_kept_if_the_request_or_the_server_says_so(open_kept: Open, open_api: Any) -> None:
    async with open_kept() as api:
        made = response_of(await api.post(PATH, body(store=False)))
        assert (await api.get(f"{PATH}/{made['id']}")).status == 404
    async with open_api() as api:
        plain = response_of(await api.post(PATH, body()))
        refused = [
            await api.post(PATH, body(**fields))
            for fields in ({"store": True}, {"background": True}, {"previous_response_id": "resp_1"})
        ]
        assert (await api.get(f"{PATH}/{plain['id']}")).status == 404
    assert (made["store"], plain["store"]) == (False, False)
    assert [answer.status for answer in refused] == [422] * 3
    assert [json.loads(answer.body)["error"]["param"] for answer in refused] == [
        *("store", "background", "previous_response_id"),
    ]


@pytest.mark.spec("RSP-21")
async def test_a_response_of_another_key_is_not_found(open_kept: Open) -> None:
    async with open_kept(door=door()) as api:
        made = response_of(await api.post(PATH, body(), key("ann")))
        where = f"{PATH}/{made['id']}"
        own = await api.get(where, key("ann"))
        others = [
            await api.get(where, key("bob")),
            await api.get(where + "/input_items", key("bob")),
            await api.post(where + "/cancel", b"", key("bob")),
            await api.delete(where, key("bob")),
        ]
        chained = await api.post(PATH, body(previous_response_id=made["id"]), key("bob"))
        referred = await api.post(PATH, body([{"type": "item_reference", "id": made["output"][0]["id"]}]), key("bob"))
    assert own.status == 200
    assert [answer.status for answer in others] == [404] * 4
    assert (chained.status, referred.status) == (400, 400)
    assert json.loads(chained.body)["error"]["code"] == "previous_response_not_found"


@pytest.mark.spec("RSP-24")
async def test_a_request_continues_the_conversation_of_a_response(open_kept: Open) -> None:
    async with open_kept(saying("<think>hm</think>yes"), **SERVED) as api:
        first = response_of(await api.post(PATH, body("a", instructions="first", max_output_tokens=100)))
        second = response_of(await api.post(PATH, body("b", previous_response_id=first["id"])))
        third = response_of(await api.post(PATH, body("c", previous_response_id=second["id"], instructions="!")))
        text = first["output"][1]["id"]
        items = [
            {"role": "user", "content": "d"},
            {"type": "item_reference", "id": text},
            {"role": "user", "content": "e"},
        ]
        response_of(await api.post(PATH, body(items)))
        prompts = [bytes(request.prompt).decode() for request in api.backend.requests]
    answered = "assistant: hmyes\n"
    assert second["previous_response_id"] == first["id"]
    assert prompts[1] == f"user: a\n{answered}user: b\nassistant: "
    assert prompts[2].startswith(f"system: !\nuser: a\n{answered}user: b\nassistant: ")
    assert prompts[2].endswith("user: c\nassistant: ")
    assert prompts[3] == "user: d\nassistant: yes\nuser: e\nassistant: "
    assert third["id"] != second["id"]


@pytest.mark.spec("RSP-25")
async def test_the_items_of_the_input_come_in_pages(open_kept: Open) -> None:
    sent = [
        {"role": "user", "content": "1"},
        {"type": "function_call", "call_id": "c", "name": "now", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "3"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "4"}]},
    ]
    async with open_kept(saying("yes"), **SERVED) as api:
        first = response_of(await api.post(PATH, body(sent)))
        made = response_of(await api.post(PATH, body("6", previous_response_id=first["id"])))
        where = f"{PATH}/{made['id']}/input_items"
        pages = [json.loads((await api.get(where + "?order=asc&limit=4")).body)]
        pages.append(json.loads((await api.get(f"{where}?order=asc&after={pages[0]['last_id']}")).body))
        newest = json.loads((await api.get(where + "?limit=1&what=1")).body)
        wrong = [await api.get(where + query) for query in ("?limit=0", "?limit=101", "?order=up", "?after=x")]
    for page in (*pages, newest):
        ResponseItemList.model_validate(page, strict=True)
    assert [page["has_more"] for page in (*pages, newest)] == [True, False, True]
    kinds = [item["type"] for page in pages for item in page["data"]]
    assert kinds == ["message", "function_call", "function_call_output", "reasoning", "message", "message"]
    assert newest["data"][0]["content"][0]["text"] == "6"
    assert [answer.status for answer in wrong] == [400] * 4


@pytest.mark.spec("RSP-26")
async def test_the_stream_of_a_kept_response_is_read_again_from_any_place(open_kept: Open) -> None:
    async with open_kept() as api:
        streamed = await api.post(PATH, body(stream=True))
        events = events_of(streamed)
        where = f"{PATH}/{events[0]['response']['id']}?stream=true"
        whole = await api.get(where)
        rest = events_of(await api.get(where + "&starting_after=4"))
        nothing = await api.get(where + "&starting_after=999")
        wrong = await api.get(where + "&starting_after=x")
        plain = response_of(await api.post(PATH, body()))
        refused = await api.get(f"{PATH}/{plain['id']}?stream=true")
    assert whole.body == streamed.body
    assert rest == events[5:]
    assert (nothing.status, nothing.body) == (200, b"")
    assert (wrong.status, refused.status) == (400, 400)


@pytest.mark.spec("RSP-27")
async def test_a_response_in_the_background_is_fetched_when_it_is_ready(open_kept: Open) -> None:
    gate = trio.Event()
    async with open_kept(ScriptedBackend(Script(gates={1: gate})), door=door(concurrent_streams=1)) as api:
        begun = response_of(await api.post(PATH, body(background=True), key("ann")))
        full = await api.post(PATH, body(), key("ann"))
        chained = await api.post(PATH, body(previous_response_id=begun["id"]), key("bob"))
        early = response_of(await api.get(f"{PATH}/{begun['id']}", key("ann")))
        hidden = await api.get(f"{PATH}/{begun['id']}", key("bob"))
        gate.set()
        ended = await finished(api, begun["id"], key("ann"))
        again = response_of(await api.post(PATH, body(), key("ann")))
    assert (begun["output"], begun["background"], early["output"]) == ([], True, [])
    assert {begun["status"], early["status"]} <= {"queued", "in_progress"}
    assert (full.status, chained.status, hidden.status) == (429, 400, 404)
    assert (ended["status"], ended["output"][0]["content"][0]["text"]) == ("incomplete", "bcd")
    assert again["usage"]["output_tokens"] == 3
    (record,) = [record for record in api.records if record.path.endswith(begun["id"]) and record.method == "POST"]
    assert record.completion_tokens == 3


@pytest.mark.spec("RSP-27")
async def test_a_response_in_the_background_is_refused_as_any_other(open_kept: Open) -> None:
    async with open_kept(ScriptedBackend(Script(refusal=Overloaded("full")))) as api:
        answer = await api.post(PATH, body(background=True))
    assert answer.status == 429
    async with open_kept(ScriptedBackend(Script(failure=EngineFailed("it stopped"), fail_before=1))) as api:
        begun = response_of(await api.post(PATH, body(background=True)))
        ended = await finished(api, begun["id"])
    assert (ended["status"], ended["error"]) == ("failed", {"code": "server_error", "message": "it stopped"})


@pytest.mark.spec("RSP-28")
async def test_a_response_in_the_background_is_cancelled(open_kept: Open) -> None:
    gate = trio.Event()
    async with open_kept(ScriptedBackend(Script(gates={2: gate}))) as api:
        begun = response_of(await api.post(PATH, body(background=True)))
        await trio.testing.wait_all_tasks_blocked()
        cancelled = response_of(await api.post(f"{PATH}/{begun['id']}/cancel", b""))
        assert (api.backend.counts.open, api.backend.counts.aborted) == (0, 1)
        twice = response_of(await api.post(f"{PATH}/{begun['id']}/cancel", b""))
        found = response_of(await api.get(f"{PATH}/{begun['id']}"))
        plain = response_of(await api.post(PATH, body(max_output_tokens=1)))
        refused = await api.post(f"{PATH}/{plain['id']}/cancel", b"")
        running = response_of(await api.post(PATH, body(background=True)))
        deleted = await api.delete(f"{PATH}/{running['id']}")
        assert api.backend.counts.open == 0
    assert (cancelled["status"], cancelled["output"][0]["content"][0]["text"]) == ("cancelled", "bc")
    assert cancelled == twice == found
    assert (refused.status, deleted.status) == (400, 200)


@pytest.mark.spec("RSP-26", "RSP-27")
async def test_a_client_that_left_reads_the_rest_of_a_stream_in_the_background(open_kept: Open) -> None:
    gate = trio.Event()
    async with open_kept(ScriptedBackend(Script(gates={1: gate}))) as api:
        sent = json.dumps(body(background=True, stream=True)).encode()
        leaving = api.server.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_ignore_end, leaving, sent)
            await trio.testing.wait_all_tasks_blocked()
            await leaving.disconnect()
            nursery.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert api.backend.counts.open == 1
        name = "resp_id1"  # the request's own id is id0
        events: list[Any] = []
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                events.extend(
                    events_of(await api.server.connect().request("GET", f"{PATH}/{name}?stream=true&starting_after=1"))
                )

            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            gate.set()
        whole = events_of(await api.get(f"{PATH}/{name}?stream=true"))
    assert [event["type"] for event in whole[:3]] == ["response.created", "response.queued", "response.in_progress"]
    assert events == whole[2:]
    assert whole[-1]["type"] == "response.incomplete"


async def _ignore_end(client: Any, sent: bytes) -> None:
    try:
        await client.request("POST", PATH, (), sent)
    except ResponseBroken:
        return


@pytest.mark.spec("RSP-29")
async def test_the_tokens_of_an_input_are_counted(open_kept: Open) -> None:
    async with open_kept(saying("yes"), **SERVED) as api:
        first = response_of(await api.post(PATH, body("a", max_output_tokens=100)))
        fields = {"input": "b", "previous_response_id": first["id"], "tools": [NOW, ADD], "instructions": "!"}
        counted = json.loads((await api.post(PATH + "/input_tokens", fields)).body)
        made = response_of(await api.post(PATH, {**body(), **fields}))
    assert counted == {"object": "response.input_tokens", "input_tokens": made["usage"]["input_tokens"]}


@pytest.mark.spec("RSP-30")
async def test_a_database_that_waits_keeps_no_other_request_waiting(open_kept: Open, tmp_path: Path) -> None:
    path = str(tmp_path / "responses.db")
    async with open_kept(path=path) as api:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        answers: list[Any] = []
        async with trio.open_nursery() as nursery:

            async def make() -> None:
                answers.append(await api.server.connect().request("POST", PATH, (), json.dumps(body()).encode()))

            nursery.start_soon(make)
            await trio.testing.wait_all_tasks_blocked()
            assert (await api.chat()).status == 200
            assert answers == []
            other.execute("COMMIT")
        other.close()
        made = response_of(answers[0])
        assert response_of(await api.get(f"{PATH}/{made['id']}")) == made


@pytest.mark.spec("RSP-31")
async def test_a_response_that_the_end_of_the_server_cuts_has_failed(open_kept: Open, tmp_path: Path) -> None:
    path = str(tmp_path / "responses.db")
    async with open_kept(ScriptedBackend(Script(gates={2: trio.Event()})), path=path) as api:
        begun = response_of(await api.post(PATH, body(background=True)))
        await trio.testing.wait_all_tasks_blocked()
    store = ResponseStore(path, max_bytes=1 << 20, max_age_s=100.0)
    store.open()
    kept = store.get(begun["id"], "", NOW_S)
    store.close()
    assert kept is not None
    assert (kept.document["status"], kept.document["error"]["message"]) == ("failed", DrainCut().message)
