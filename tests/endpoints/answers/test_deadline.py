"""Deadlines of every form: in the queue and at work, before the head and after it."""

import json
import math
from typing import Any

import pytest
import trio
import trio.testing

from tests.kit.http.http_calls import parse_events
from tests.kit.scripted_backend import Script, ScriptedBackend
from tlserve.config.tables.network import HttpSettings
from tlserve.endpoints.answers.deadline import plan_deadline
from tlserve.endpoints.request_headers import DEADLINE, read_deadline_s
from tlserve.errors import ClientError
from tlserve.http.messages import Headers

COMPLETIONS = "/v1/completions"
SLOW = Script(queue_s=10, prefill_s=10, token_s=10)


def fault(answer: Any) -> tuple[int, str]:
    found = json.loads(answer.body)["error"]
    assert (found["type"], found["param"]) == ("server_error", None)
    return answer.status, found["code"]


# --- which deadline applies ------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-70")
@pytest.mark.parametrize(
    ("header_s", "timeout_s", "most_ms", "given_s"),
    [
        (math.inf, None, 0, math.inf),
        (2.0, None, 0, 2.0),
        (math.inf, 0.5, 0, 0.5),
        (2.0, 0.5, 0, 0.5),
        (0.25, 0.5, 0, 0.25),
        (math.inf, None, 3000, 3.0),
        (9.0, 8.0, 3000, 3.0),
        (1.0, 8.0, 3000, 1.0),
    ],
)
def test_the_earliest_deadline_of_header_body_and_setting_applies(
    header_s: float, timeout_s: float | None, most_ms: int, given_s: float
) -> None:
    deadline = plan_deadline(100.0, header_s, timeout_s, most_ms)
    assert (deadline.at, deadline.given_s) == (100.0 + given_s, given_s)


@pytest.mark.spec("API-70")
@pytest.mark.parametrize("value", ["0", "-1", "1.5", "", "x", "1e3", "٣", " 5 5", "9" * 13])
def test_a_header_that_is_not_a_number_of_milliseconds_is_refused(value: str) -> None:
    with pytest.raises(ClientError) as refused:
        read_deadline_s(Headers([(DEADLINE, value)]))
    assert refused.value.param == DEADLINE


def test_a_header_gives_milliseconds() -> None:
    assert read_deadline_s(Headers([(DEADLINE, "1500")])) == 1.5
    assert read_deadline_s(Headers([])) == math.inf


# --- before the head ------------------------------------------------------------------------------------------------

GIVEN = [
    pytest.param({"timeout": 5}, (), HttpSettings(), id="body"),
    pytest.param({}, ((DEADLINE, "5000"),), HttpSettings(), id="header"),
    pytest.param({}, (), HttpSettings(answer_timeout_ms=5000), id="setting"),
    pytest.param({"timeout": 60}, ((DEADLINE, "5000"),), HttpSettings(answer_timeout_ms=90_000), id="all"),
]


@pytest.mark.spec("API-137")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "headers", "settings"), GIVEN)
async def test_a_deadline_that_passes_in_the_queue_is_504_and_ends_the_work(
    open_api, autojump_clock, fields: Any, headers: Any, settings: HttpSettings, stream: bool
) -> None:
    backend = ScriptedBackend(SLOW)
    async with open_api(backend, settings) as api:
        start = trio.current_time()
        answer = await api.chat("a", *headers, stream=stream, n=2, **fields)
        assert trio.current_time() - start == pytest.approx(5)
        assert fault(answer) == (504, "deadline_exceeded")
        assert (backend.counts.open, backend.counts.aborted) == (0, 2)
        assert "5000 ms" in json.loads(answer.body)["error"]["message"]


@pytest.mark.spec("API-138")
async def test_a_whole_answer_that_is_late_is_504_whatever_was_generated(open_api, autojump_clock) -> None:
    backend = ScriptedBackend(SLOW)
    async with open_api(backend) as api:
        answer = await api.post(COMPLETIONS, {"model": "succ", "prompt": "a", "timeout": 35, "max_tokens": 3})
    assert fault(answer) == (504, "deadline_exceeded")
    assert (backend.counts.open, backend.counts.aborted) == (0, 1)


@pytest.mark.spec("API-70")
async def test_an_answer_in_time_equals_one_without_a_deadline(open_api, autojump_clock) -> None:
    async with open_api(ScriptedBackend(SLOW)) as api:
        free, bound = await api.chat(), await api.chat(timeout=45)
        streamed = await api.chat(timeout=45, stream=True)
    assert json.loads(bound.body)["choices"] == json.loads(free.body)["choices"]
    assert parse_events(streamed.body)[-2]["choices"][0]["finish_reason"] == "length"


@pytest.mark.spec("API-70")
async def test_a_deadline_that_passed_before_admission_does_not_reach_the_backend(open_api, autojump_clock) -> None:
    backend = ScriptedBackend()
    async with open_api(backend) as api:
        stream = api.server.connect_raw()
        data = json.dumps({"model": "succ", "messages": [{"role": "user", "content": "a"}], "timeout": 1}).encode()
        await stream.send_all(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data)
        )
        await trio.sleep(2)
        await stream.send_all(data)
        await trio.testing.wait_all_tasks_blocked()
        head = bytes(await stream.receive_some(1 << 16))
    assert head.startswith(b"HTTP/1.1 504 ")
    assert backend.requests == []


@pytest.mark.spec("API-137")
async def test_embeddings_also_have_deadlines(open_api, autojump_clock) -> None:
    body = {"model": "succ", "input": "a"}
    async with open_api(ScriptedBackend(SLOW)) as api:
        late = await api.post("/v1/embeddings", {**body, "timeout": 5})
        later = await api.post("/v1/embeddings", body, (DEADLINE, "9999"))
        in_time = await api.post("/v1/embeddings", {**body, "timeout": 11})
    assert [fault(late), fault(later)] == [(504, "deadline_exceeded")] * 2
    assert in_time.status == 200


# --- after it -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-138")
@pytest.mark.parametrize("n", [1, 3])
async def test_a_stream_that_is_late_ends_with_an_error_event_and_done(open_api, autojump_clock, n: int) -> None:
    backend = ScriptedBackend(SLOW)
    async with open_api(backend) as api:
        start = trio.current_time()
        answer = await api.chat(stream=True, timeout=35, n=n, max_tokens=9)
        assert trio.current_time() - start == pytest.approx(35)
        record = api.records[-1]
    *before, error, done = parse_events(answer.body)
    assert (answer.status, done, error["error"]["code"]) == (200, "[DONE]", "deadline_exceeded")
    assert len(before) == n * (1 + 2)  # the role and the two tokens that were in time
    assert all(chunk["choices"][0]["finish_reason"] is None for chunk in before)
    assert (backend.counts.open, backend.counts.aborted) == (0, n)
    assert (record.status, record.finish, record.error) == (200, "error", "deadline_exceeded")


@pytest.mark.spec("API-137")
async def test_the_work_for_a_client_that_does_not_read_ends_at_its_deadline(open_api, autojump_clock) -> None:
    """The write is stuck, and the backend is left nevertheless."""
    backend = ScriptedBackend(Script(token_s=1))
    async with open_api(backend, HttpSettings(write_timeout_ms=1_000_000)) as api:
        stream = api.server.connect_raw(lockstep=True)
        data = json.dumps(
            {"model": "succ", "messages": [{"role": "user", "content": "a"}], "stream": True, "timeout": 5}
        ).encode()
        await stream.send_all(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data
        )
        await trio.sleep(4)
        assert backend.counts.open == 1
        await trio.sleep(2)
        assert (backend.counts.open, backend.counts.aborted) == (0, 1)
        await trio.aclose_forcefully(stream)
