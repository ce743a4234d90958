"""Progress of a stream up to its first token, as comments: the queue, then the prompt."""

import json
from typing import Any

import pytest
import trio
import trio.testing

from tests.kit.http.http_calls import parse_events
from tests.kit.scripted_backend import INFO, Script, ScriptedBackend
from tlserve.errors import NoCapacity, Overloaded
from tlserve.generation import GenerationRequest

PROGRESS = ("X-TL-Progress", "1")
WAITING = Script(queue_s=6, ahead=(3, 1, 0), prefill_s=4, chunk_tokens=2)


def blocks(answer: Any) -> list[str]:
    """Return events and comments in their order; each is one line and a blank one."""
    text = answer.body.decode()
    assert text.endswith("\n\n")
    found = text[:-2].split("\n\n")
    assert all("\n" not in block for block in found)
    return found


@pytest.mark.spec("API-139")
async def test_comments_report_queue_and_prompt_before_the_first_token(open_api, autojump_clock) -> None:
    async with open_api(ScriptedBackend(WAITING)) as api:
        plain = await api.chat("aaaa", stream=True)
        told = await api.chat("aaaa", PROGRESS, stream=True)
    comments = [block for block in blocks(told) if block.startswith(":")]
    assert comments == [
        ": progress queue=3",
        ": progress queue=1",
        ": progress queue=0",
        ": progress prefill=2/4",
        ": progress prefill=4/4",
    ]
    kinds = ["comment" if block.startswith(":") else "event" for block in blocks(told)]
    assert kinds == ["comment"] * 3 + ["event"] + ["comment"] * 2 + ["event"] * 4  # the role comes with the prefill
    without = [json.loads(block[6:])["choices"] for block in blocks(plain)[:-1]]
    assert [event["choices"] for event in parse_events(told.body)[:-1]] == without


@pytest.mark.spec("API-71")
async def test_the_head_is_sent_at_admission_and_pings_fill_the_wait(open_api, autojump_clock) -> None:
    async with open_api(ScriptedBackend(Script(queue_s=40))) as api:
        stream = api.server.connect_raw()
        data = json.dumps({"model": "succ", "messages": [{"role": "user", "content": "a"}], "stream": True}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-TL-Progress: 1\r\nContent-Length: %d\r\n\r\n"
        await stream.send_all(head % len(data) + data)
        await trio.testing.wait_all_tasks_blocked()
        assert bytes(await stream.receive_some(1 << 16)).startswith(b"HTTP/1.1 200")
        await trio.sleep(31)
        assert bytes(await stream.receive_some(1 << 16)).count(b": ping\n\n") == 2


@pytest.mark.spec("API-140")
async def test_a_refusal_at_admission_is_a_status_and_a_later_fault_an_event(open_api, autojump_clock) -> None:
    late = Script(queue_s=2, ahead=(1,), failure=NoCapacity("no room came free"), fail_before=-1)
    async with open_api(ScriptedBackend(Script(refusal=Overloaded("full")))) as api:
        refused = await api.chat("a", PROGRESS, stream=True)
    async with open_api(ScriptedBackend(late)) as api:
        failed = await api.chat("a", PROGRESS, stream=True)
    assert refused.status == 429
    assert failed.status == 200
    comment, error, done = blocks(failed)
    assert (comment, done) == (": progress queue=1", "data: [DONE]")
    assert json.loads(error[6:])["error"]["code"] == "no_capacity"


@pytest.mark.spec("API-71")
async def test_a_request_that_never_left_the_queue_costs_its_key_nothing(open_api, autojump_clock) -> None:
    """The head was sent, and no work was done."""
    late = Script(queue_s=2, failure=NoCapacity("no room came free"), fail_before=-1)
    async with open_api(ScriptedBackend(late)) as api:
        await api.chat("a", PROGRESS, stream=True)
        record = api.records[-1]
    assert (record.status, record.queue_ms, record.error) == (200, None, "no_capacity")


@pytest.mark.spec("API-139")
async def test_several_answers_report_the_first_and_nothing_after_a_token(open_api, autojump_clock) -> None:
    def script(request: GenerationRequest) -> Script:
        return Script(queue_s=9, ahead=(2, 1, 0)) if request.choice == 0 else Script(queue_s=1, token_s=3)

    async with open_api(ScriptedBackend(script)) as api:
        told = await api.chat("a", PROGRESS, stream=True, n=2)
    assert [block for block in blocks(told) if block.startswith(":")] == [": progress queue=2"]


@pytest.mark.spec("API-71")
@pytest.mark.parametrize("value", ["0", None])
async def test_without_the_header_no_progress_is_requested_or_sent(open_api, autojump_clock, value: Any) -> None:
    backend = ScriptedBackend(WAITING)
    async with open_api(backend) as api:
        answer = await api.chat("aaaa", *([("X-TL-Progress", value)] if value else []), stream=True)
    assert b":" not in {block[:1].encode() for block in blocks(answer)}
    assert [request.progress for request in backend.requests] == [False]


@pytest.mark.spec("API-71")
async def test_progress_without_a_stream_is_400(open_api) -> None:
    async with open_api() as api:
        answer = await api.chat("a", PROGRESS)
        odd = await api.chat("a", ("X-TL-Progress", "yes"), stream=True)
    assert [(a.status, json.loads(a.body)["error"]["param"]) for a in (answer, odd)] == [(400, "X-TL-Progress")] * 2


@pytest.mark.spec("API-139")
async def test_progress_that_is_ready_together_with_a_token_is_not_sent(open_api) -> None:
    backend = ScriptedBackend(Script(ahead=(1,), chunk_tokens=1, batch_tokens=99), info=INFO)
    async with open_api(backend) as api:
        answer = await api.chat("aaaa", PROGRESS, stream=True)
    assert not any(block.startswith(":") for block in blocks(answer))
