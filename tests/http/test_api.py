"""The requirements of RFC 9110 and 9112, tested on the whole API: every route, with access control, over memory streams."""

import json
import re
import threading

import pytest
import trio
from trio.testing import MockClock

from tests.kit.http.guarded_api import CHAT, KEY, RIGHT, chat_body, guarded
from tests.kit.http.memory_http import statuses
from tests.kit.scripted_backend import Script
from tlserve.endpoints.api import ROUTES
from tlserve.text.byte_tokenizer import ByteTokenizer

PATHS = sorted({re.sub(r"\{id\+?\}", "succ", path) for _, path in ROUTES})
AUTHORIZATION = f"Authorization: Bearer {KEY}\r\n"


@pytest.mark.spec("HTTP-70")
@pytest.mark.parametrize("path", PATHS)
async def test_a_method_that_a_route_does_not_have_is_405_with_allow(path: str) -> None:
    async with guarded() as api:
        methods = {method for method, pattern in ROUTES if re.fullmatch(re.sub(r"\{id\+?\}", "[^/]+", pattern), path)}
        methods |= {"OPTIONS"} | ({"HEAD"} if "GET" in methods else set())
        refused = await api.ask("PATCH", path, RIGHT)
        asked = await api.ask("OPTIONS", path, RIGHT)
        assert (refused.status, asked.status) == (405, 204)
        for answer in (refused, asked):
            assert answer.headers.get("allow") == ", ".join(sorted(methods))


@pytest.mark.spec("HTTP-70")
@pytest.mark.parametrize("path", ["/healthz", "/v1/models", "/v1/models/succ", "/v1/models/other", "/v1/nothing"])
async def test_head_is_get_without_its_body(path: str) -> None:
    async with guarded() as api:
        got, head = [await api.ask(method, path, RIGHT) for method in ("GET", "HEAD")]
        assert (head.status, head.body) == (got.status, b"")
        same = ("content-type", "content-length", "server")
        assert [head.headers.get(name) for name in same] == [got.headers.get(name) for name in same]


@pytest.mark.spec("HTTP-70")
@pytest.mark.parametrize("path", [*PATHS, "/nothing"])
async def test_every_answer_has_a_date_a_server_and_an_id(path: str) -> None:
    async with guarded() as api:
        for method in ("GET", "POST", "DELETE"):
            for headers in ((), (RIGHT,)):
                answer = await api.ask(method, path, *headers)
                for name in ("date", "server", "x-request-id"):
                    assert len(answer.headers.get_all(name)) == 1


@pytest.mark.spec("HTTP-71")
async def test_a_connection_is_kept_through_refusals_and_streams() -> None:
    async with guarded() as api:
        client = api.server.connect()
        for stream, headers in ((False, [RIGHT]), (True, [RIGHT]), (False, []), (True, [RIGHT])):
            body = json.dumps(chat_body(stream=stream)).encode()
            answer = await client.request("POST", CHAT, headers, body)
            assert answer.status == (200 if headers else 401)
        assert api.server.listener.accepted == 1


@pytest.mark.spec("HTTP-71")
async def test_chat_requests_that_are_pipelined_are_answered_in_order(autojump_clock: MockClock) -> None:
    async with guarded(script=Script(token_s=1.0)) as api:
        bodies = [json.dumps(chat_body(max_tokens=length)) for length in (3, 1, 2)]
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\n{AUTHORIZATION}Content-Length: "
        client = api.server.connect_raw()
        await client.send_all("".join(f"{head}{len(body)}\r\n\r\n{body}" for body in bodies).encode())
        received = b""
        while received.count(b'"completion_tokens":') < 3:
            received += await client.receive_some(65_536)
        assert statuses(received) == [200, 200, 200]
        assert [part[:1] for part in received.split(b'"completion_tokens":')[1:]] == [b"3", b"1", b"2"]


@pytest.mark.spec("HTTP-74")
async def test_a_chunked_body_is_read_and_its_trailers_are_ignored() -> None:
    body = json.dumps(chat_body()).encode()
    chunks = b"".join(b"%x;name=value\r\n%s\r\n" % (len(part), part) for part in (body[:7], body[7:]))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n".encode()
    async with guarded() as api:
        good = await api.server.exchange([head + AUTHORIZATION.encode() + b"\r\n" + chunks + b"0\r\nX-Sum: 1\r\n\r\n"])
        late = await api.server.exchange([head + b"\r\n" + chunks + b"0\r\n" + AUTHORIZATION.encode() + b"\r\n"])
    assert (statuses(good), statuses(late)) == ([200], [401])


async def test_http_1_0_gets_a_stream_up_to_the_close() -> None:
    body = json.dumps(chat_body(stream=True))
    head = f"POST {CHAT} HTTP/1.0\r\n{AUTHORIZATION}Content-Length: {len(body)}\r\n\r\n"
    async with guarded() as api:
        answer = await api.server.exchange([(head + body).encode()])
    assert b"transfer-encoding" not in answer.lower()
    assert answer.endswith(b"data: [DONE]\n\n")


@pytest.mark.spec("HTTP-72")
async def test_two_requests_under_one_id_are_two_requests(autojump_clock: MockClock) -> None:
    answers: dict[int, object] = {}
    async with guarded(script=Script(token_s=1.0)) as api, trio.open_nursery() as nursery:

        async def ask(length: int) -> None:
            answer = await api.chat(RIGHT, ("X-Request-Id", "mine"), max_tokens=length)
            assert answer.headers.get("x-request-id") == "mine"
            answers[length] = json.loads(answer.body)

        for length in (2, 5):
            nursery.start_soon(ask, length)
    assert [answers[length]["usage"]["completion_tokens"] for length in (2, 5)] == [2, 5]  # type: ignore[index]
    assert answers[2]["id"] != answers[5]["id"]  # type: ignore[index]


class WaitingTokenizer(ByteTokenizer):
    """A tokenizer that works on a large text until the test lets it continue; otherwise it fails the test.

    One of its tokens spells a megabyte, so that the length of a text alone does not show that it is too long.
    """

    longest_token_bytes = 1 << 20

    def __init__(self) -> None:
        self.works, self.may_go_on = threading.Event(), threading.Event()

    def encode(self, text: str) -> list[int]:
        if len(text) > 100_000:
            self.works.set()
            assert self.may_go_on.wait(20), "nobody else was served while a large prompt was read"
        return super().encode(text)


@pytest.mark.spec("HTTP-73")
async def test_a_large_prompt_does_not_stall_other_streams() -> None:
    tokenizer = WaitingTokenizer()
    async with guarded(served={"tokenizer": tokenizer}) as api, trio.open_nursery() as nursery:
        large: list[int] = []

        async def send_a_megabyte() -> None:
            messages = [{"role": "user", "content": "x" * 1_000_000}]
            large.append((await api.chat(messages=messages)).status)

        nursery.start_soon(send_a_megabyte)
        assert await trio.to_thread.run_sync(tokenizer.works.wait, 20)
        for stream in (False, True):
            answer = await api.chat(stream=stream)
            assert answer.status == 200
        assert large == []
        tokenizer.may_go_on.set()
    assert large == [400]  # longer than the context, which is found when it has been read
