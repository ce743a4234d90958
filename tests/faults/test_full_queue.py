"""More requests than the capacity: which are refused, which are served, and that no place is lost."""

import json
from typing import Any

import pytest

from tests.kit.http.gated_server import CHAT, gated_server, until
from tests.kit.http.http_calls import chat, content_of

ROOM: dict[str, Any] = {"max_num_seqs": 2, "queue_capacity": 2}


async def ask(client, body):
    return await client.request("POST", CHAT, (), json.dumps(body).encode())


def assert_refused(answer):
    assert answer.status == 429
    assert answer.headers.get("content-type") == "application/json"
    assert int(answer.headers.get("retry-after") or 0) >= 1
    error = json.loads(answer.body)["error"]
    assert (error["type"], error["code"], error["param"]) == ("rate_limit_error", "rate_limit_exceeded", None)


@pytest.mark.spec("CASE-34", "FAULT-3")
async def test_of_ten_requests_at_once_six_are_refused_and_four_answered() -> None:
    async with gated_server(**ROOM) as host:
        bodies = [chat(chr(97 + i), max_tokens=3, stream=i % 2 == 1) for i in range(10)]
        talks = [await host.send(body) for body in bodies]
        for talk in talks[4:]:
            assert_refused(await talk.answer())
        host.gate.open_all()
        for talk, expected in zip(talks[:4:2], ("bcd", "def"), strict=True):
            assert (await talk.document())["choices"][0]["message"]["content"] == expected
        for talk, expected in zip(talks[1:4:2], ("cde", "efg"), strict=True):
            assert content_of(await talk.events()) == expected


@pytest.mark.spec("FAULT-3", "FAULT-13")
async def test_a_refused_connection_is_usable_and_aborts_free_their_places() -> None:
    async with gated_server(**ROOM) as host:
        inside = [await host.send(chat("a", max_tokens=3)) for _ in range(4)]
        async with await host.connect() as client:
            for _ in range(3):
                assert_refused(await ask(client, chat("a", max_tokens=3)))
            assert (await client.request("GET", "/v1/models")).status == 200
            for leaver in (inside[0], inside[3]):
                await leaver.client.aclose()
            await until(lambda: host.backend.admitted == 2)
            followers = [await host.send(chat("a", max_tokens=3)) for _ in range(2)]
            assert_refused(await ask(client, chat("a", max_tokens=3)))
            host.gate.open_all()
            for talk in (inside[1], inside[2], *followers):
                assert (await talk.document())["choices"][0]["message"]["content"] == "bcd"
            answer = await ask(client, chat("a", max_tokens=3))
            assert json.loads(answer.body)["choices"][0]["message"]["content"] == "bcd"
        assert host.backend.admitted == 0


@pytest.mark.spec("CASE-34", "FAULT-13")
async def test_many_rounds_of_refusals_and_aborts_lose_no_place() -> None:
    async with gated_server(**ROOM) as host:
        for _ in range(20):
            talks = [await host.send(chat("a", max_tokens=9, stream=True)) for _ in range(5)]
            assert_refused(await talks[4].answer())
            for talk in talks[:4]:
                await talk.client.aclose()
            await until(lambda: host.backend.admitted == 0)
            host.gate.open_one()
        host.gate.open_all()
        last = await host.send(chat("a", max_tokens=3))
        assert (await last.document())["choices"][0]["message"]["content"] == "bcd"
        assert host.statistics.finished_aborted_total == 80


async def test_a_slow_body_holds_no_place_and_is_refused_when_complete() -> None:
    async with gated_server(max_num_seqs=1, queue_capacity=0) as host:
        data = json.dumps(chat("a", max_tokens=3)).encode()
        slow = await host.raw()
        async with slow:
            head = b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(data))
            await slow.send_all(head + data[:10])
            first = await host.send(chat("a", max_tokens=3))
            assert host.backend.admitted == 1
            await slow.send_all(data[10:])
            assert (await slow.receive_some()).startswith(b"HTTP/1.1 429 ")
            host.gate.open_all()
            assert (await first.answer()).status == 200


@pytest.mark.spec("FAULT-4", "CASE-45")
async def test_a_request_that_waits_too_long_is_503_before_its_stream_starts() -> None:
    async with gated_server(max_num_seqs=1, queue_deadline_ms=50) as host:
        first = await host.send(chat("a", max_tokens=3))
        await host.step()
        waiting = await host.send(chat("a", max_tokens=3, stream=True))
        answer = await waiting.answer()
        assert answer.status == 503
        assert answer.headers.get("content-type") == "application/json"
        assert int(answer.headers.get("retry-after") or 0) >= 1
        assert json.loads(answer.body)["error"]["code"] == "no_capacity"
        host.gate.open_all()
        assert (await first.answer()).status == 200
