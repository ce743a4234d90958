"""The server is stopped: open requests finish or get an error when they are cut, and nothing new begins."""

import json

import pytest
import trio

from tests.kit.http.gated_server import gated_server, until
from tests.kit.http.http_calls import chat, content_of

STREAM = chat("a", max_tokens=5, stream=True)


@pytest.mark.spec("CASE-33", "FAULT-5")
async def test_a_drain_finishes_running_and_queued_requests_and_closes_idle_ones() -> None:
    async with gated_server(max_num_seqs=1) as host:
        idle = await host.connect()
        assert (await idle.request("GET", "/v1/models")).status == 200
        running = await host.send(STREAM)
        await host.step()
        queued = await host.send(chat("d", max_tokens=5, stream=True))
        whole = await host.send(chat("g", max_tokens=5))
        host.server.drain()
        assert await idle.stream.receive_some() == b""
        ready = await host.health("/readyz")
        assert (ready.status, json.loads(ready.body)["reason"]) == (503, "draining")
        assert (await host.health("/healthz")).status == 200
        with pytest.raises(OSError, match="connect"):
            await host.connect()
        host.gate.open_all()
        for talk, text in ((running, "bcdef"), (queued, "efghi")):
            events = await talk.events()
            assert content_of(events) == text
            assert events[-2]["choices"][0]["finish_reason"] == "length"
        assert (await whole.document())["choices"][0]["message"]["content"] == "hijkl"
        assert (await whole.answer()).headers.get("connection") == "close"
        assert await host.server.join() == 0
        await idle.aclose()


@pytest.mark.spec("FAULT-5")
async def test_a_request_on_an_open_connection_gets_retry_after_in_a_drain() -> None:
    async with gated_server(max_num_seqs=1) as host:
        running = await host.send(STREAM)
        await host.step()
        data = json.dumps(chat("a", max_tokens=3)).encode()
        idle, late = await host.raw(), await host.raw()
        fields = b"Host: localhost\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(data)
        await late.send_all(b"POST /v1/chat/completions HTTP/1.1\r\n" + fields)
        assert (await late.receive_some()).startswith(b"HTTP/1.1 100 ")
        host.server.drain()
        assert await idle.receive_some() == b""
        await late.send_all(data)
        answer = await late.receive_some()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1\r\n" in answer
        assert b"Connection: close\r\n" in answer
        await late.aclose()
        await idle.aclose()
        host.gate.open_all()
        assert content_of(await running.events()) == "bcdef"
        assert await host.server.join() == 0


def assert_told(events, text):
    """The stream has its pieces, one error, and the end; it has no finish."""
    *chunks, error, done = events
    assert content_of(chunks) == text
    assert all(choice["finish_reason"] is None for chunk in chunks for choice in chunk["choices"])
    assert error["error"]["type"] == "server_error"
    assert error["error"]["code"] == "draining"
    assert done == "[DONE]"


@pytest.mark.spec("CASE-33", "FAULT-15")
@pytest.mark.parametrize("second_stop", [False, True])
async def test_after_its_limit_or_a_second_stop_a_drain_cuts_and_exits_with_3(second_stop) -> None:
    limit_ms = 60_000 if second_stop else 50
    async with gated_server(max_num_seqs=2, http__drain_timeout_ms=limit_ms) as host:
        running = await host.send(STREAM)
        whole = await host.send(chat("a", max_tokens=5))
        await host.step()
        queued = await host.send(STREAM)
        await until(lambda: content_of_partial(running) == "b")
        host.server.drain()
        if second_stop:
            host.server.drain()
        assert_told(await running.events(), "b")
        for refused in (whole, queued):
            answer = await refused.answer()
            assert answer.status == 503
            assert json.loads(answer.body)["error"]["code"] == "draining"
            assert int(answer.headers.get("retry-after") or 0) >= 1
        host.gate.open_all()
        assert await host.server.join() == 3


def content_of_partial(talk):
    payloads = [line.removeprefix(b"data: ") for line in talk.seen.split(b"\n\n")[:-1]]
    return content_of([json.loads(payload) for payload in payloads])


async def test_a_client_that_leaves_in_a_drain_lets_the_server_end() -> None:
    async with gated_server(http__drain_timeout_ms=60_000) as host:
        leaver = await host.send(chat("a", max_tokens=4000, stream=True))
        await host.step()
        host.server.drain()
        await leaver.client.aclose()
        await until(lambda: host.backend.admitted == 0)
        host.gate.open_all()
        assert await host.server.join() == 0


@pytest.mark.spec("HTTP-79")
async def test_a_body_that_never_comes_gets_503_and_the_drain_ends_well(caplog: pytest.LogCaptureFixture) -> None:
    async with gated_server(http__drain_timeout_ms=60_000) as host:
        caplog.set_level("INFO")
        stream = await host.raw()
        fields = b"Host: localhost\r\nExpect: 100-continue\r\nContent-Length: 99\r\n\r\n"
        await stream.send_all(b"POST /v1/completions HTTP/1.1\r\n" + fields)
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 100 ")
        await stream.send_all(b"{")
        host.server.drain()
        answer = b""
        with trio.fail_after(20):
            while part := await stream.receive_some():
                answer += part
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert json.loads(body)["error"]["code"] == "draining"
        await stream.aclose()
        assert await host.server.join() == 0
    (line,) = [record.getMessage() for record in caplog.records if "/v1/completions" in record.getMessage()]
    assert " status=503 " in line
