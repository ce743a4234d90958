"""Access control for the whole API, over memory streams, in front of a scripted backend."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.kit.http.guarded_api import CHAT, KEY, RIGHT, chat_body, guarded, open_streams
from tests.kit.http.memory_http import read_available, statuses
from tests.kit.scripted_backend import Script
from tlserve.access.keys import KeyRing, Limits
from tlserve.endpoints.api import ROUTES
from tlserve.http.client.connection import HttpResponse
from tlserve.telemetry.request_log import request_line

APP = "https://app.example.com"


def error_of(answer: HttpResponse) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(answer.body)["error"]
    return error


# --- who gets access


OTHER_FORMS = ("/v1/messages", "/api/")
"""The beginnings of paths whose errors have the form of another API."""
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW")
PATHS = [path.replace("{id+}", "succ") for _, path in ROUTES]
WRONG: dict[str, tuple[tuple[str, str], ...]] = {
    "no key": (),
    "a wrong key": (("Authorization", "Bearer sk-wrong-wrong-wrong"),),
    "a wrong key in lower case": (("authorization", "bearer sk-wrong-wrong-wrong"),),
    "another scheme": (("Authorization", f"Basic {KEY}"),),
    "another X-Api-Key": (("X-Api-Key", "sk-wrong-wrong-wrong"), RIGHT),
    "a second field": (("Authorization", "Bearer sk-wrong-wrong-wrong"), RIGHT),
    "a second field, the right one first": (RIGHT, ("Authorization", "Bearer sk-wrong-wrong-wrong")),
}


@pytest.mark.spec("ACC-1", "ACC-4", "CASE-36")
@pytest.mark.parametrize("wrong", WRONG)
async def test_every_route_and_method_except_liveness_needs_a_key(wrong: str) -> None:
    async with guarded() as api:
        for path in sorted({*PATHS, "/", "/metrics", "/readyz", "/v1", "/docs"}):
            for method in METHODS:
                answer = await api.ask(method, path, *WRONG[wrong])
                if path == "/healthz" and method in ("GET", "HEAD"):
                    assert answer.status == 200
                    continue
                assert answer.status == 401, (method, path)
                assert str(answer.headers.get("www-authenticate")).startswith("Bearer ")
                if method != "HEAD":
                    assert "API key" in answer.body.decode()
                if method != "HEAD" and not path.startswith(OTHER_FORMS):
                    error = error_of(answer)
                    assert (error["code"], error["type"]) == ("invalid_api_key", "authentication_error")
        assert (api.backend.requests, api.backend.embedding_requests) == ([], [])


TRICKS = [
    "//v1/models",
    "/v1//models",
    "/v1/models/",
    "/v1/models//",
    "/V1/models",
    "/v1/Models",
    "/v1/../metrics",
    "/v1/../v1/models",
    "/healthz/../v1/models",
    "/healthz/v1/models",
    "/healthz%2F..%2Fv1%2Fmodels",
    "/healthz;/v1/models",
    "/healthz/",
    "/HEALTHZ",
    "/%68ealthz/..",
    "/v1%2Fmodels",
    "/v1/%2e%2e/metrics",
    "/v1/models%00",
    "/v1/models%20",
    "/v1/models?x=/healthz",
    "/v1/models/succ?/healthz",
    "http://x/v1/models",
    "http://healthz/v1/models",
    "/./v1/models",
    "*",
]


@pytest.mark.spec("ACC-2")
@pytest.mark.parametrize("target", TRICKS)
async def test_no_spelling_of_a_path_avoids_the_key_check(target: str) -> None:
    async with guarded() as api:
        for method in ("GET", "POST", "OPTIONS"):
            answer = await api.ask(method, target)
            assert answer.status in (400, 401, 404)
            assert b"succ" not in answer.body


@pytest.mark.spec("ACC-2")
async def test_an_escaped_letter_in_a_path_does_not_change_its_protection() -> None:
    async with guarded() as api:
        assert (await api.ask("GET", "/%68ealthz")).status == 200
        assert (await api.ask("GET", "/v1/%6Dodels")).status == 401


@pytest.mark.parametrize("key", [RIGHT, ("authorization", f"bearer {KEY}")])
async def test_the_right_key_opens_every_route_and_unknown_ones_are_404_or_405(key: tuple[str, str]) -> None:
    async with guarded() as api:
        assert (await api.ask("GET", "/v1/models", key)).status == 200
        assert (await api.chat(key)).status == 200
        assert (await api.ask("GET", "/v1/nothing", key)).status == 404
        assert (await api.ask("GET", CHAT, key)).status == 405
        assert (await api.ask("OPTIONS", CHAT, key)).status == 204


@pytest.mark.spec("ACC-46")
async def test_an_expired_key_is_403_with_an_error_document() -> None:
    async with guarded(expires_s=1.0) as api:
        answer = await api.chat()
        error = error_of(answer)
        assert (answer.status, error["type"], error["code"]) == (403, "authentication_error", "api_key_not_allowed")


@pytest.mark.spec("ACC-6")
async def test_the_log_has_the_name_of_the_key_but_not_the_key() -> None:
    async with guarded() as api:
        await api.chat()
        await api.chat(("Authorization", "Bearer sk-wrong-wrong-wrong"))
        lines = [request_line(record) for record in api.records]
        assert "key=ci" in lines[0]
        assert "key=" not in lines[1]
        assert not any("0123456789" in line or "wrong" in line for line in lines)


# --- before the body


HEAD = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n"
EXPECT = "Expect: 100-continue\r\n"


@pytest.mark.spec("ACC-7")
@pytest.mark.parametrize("expect", ["", EXPECT])
async def test_401_is_sent_before_the_body_is_read_instead_of_100(expect: str) -> None:
    async with guarded() as api:
        answer = await api.server.exchange([f"{HEAD}{expect}\r\n".encode()])
        assert statuses(answer) == [401]
        assert b"Connection: close" in answer


@pytest.mark.spec("ACC-7")
@pytest.mark.parametrize("expect", ["", EXPECT])
async def test_429_is_sent_before_the_body_is_read_instead_of_100(expect: str) -> None:
    async with guarded(Limits(requests_per_minute=1)) as api:
        await api.chat()
        answer = await api.server.exchange([f"{HEAD}{expect}Authorization: Bearer {KEY}\r\n\r\n".encode()])
        assert statuses(answer) == [429]


# --- limits


@pytest.mark.spec("ACC-23")
async def test_requests_above_the_limit_get_429_and_the_connection_is_kept(autojump_clock: MockClock) -> None:
    async with guarded(Limits(requests_per_minute=2)) as api:
        client = api.server.connect()
        body = json.dumps(chat_body()).encode()
        answers = [await client.request("POST", CHAT, [RIGHT], body) for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 429]
        assert [answer.headers.get("x-ratelimit-remaining-requests") for answer in answers] == ["1", "0", "0"]
        error = error_of(answers[2])
        assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
        retry_after = answers[2].headers.get_all("retry-after")
        await trio.sleep(int(*retry_after))
        assert (await client.request("POST", CHAT, [RIGHT], body)).status == 200


@pytest.mark.spec("ACC-24")
async def test_no_rate_limit_header_is_sent_twice() -> None:
    async with guarded(Limits(requests_per_minute=3, tokens_per_minute=8, concurrent_streams=1)) as api:
        for answer in [await api.chat() for _ in range(4)]:
            names = [name.lower() for name, _ in answer.headers if name.lower().startswith(("x-ratelimit", "retry"))]
            assert len(names) == len(set(names))
            assert {"x-ratelimit-limit-requests", "x-ratelimit-reset-tokens"} <= set(names)


@pytest.mark.spec("ACC-21", "ACC-51")
async def test_tokens_are_counted_as_the_usage_says() -> None:
    async with guarded(Limits(tokens_per_minute=100)) as api:
        whole = await api.chat()
        usage = json.loads(whole.body)["usage"]["total_tokens"]
        for stream in (False, True):
            before = await api.ask("GET", "/v1/models", RIGHT)
            await api.chat(stream=stream)
            after = await api.ask("GET", "/v1/models", RIGHT)
            left = [int(str(answer.headers.get("x-ratelimit-remaining-tokens"))) for answer in (before, after)]
            assert left[0] - left[1] == usage


async def test_a_request_above_the_rest_is_429_and_a_smaller_one_is_served() -> None:
    async with guarded(Limits(tokens_per_minute=70)) as api:
        assert (await api.chat(max_tokens=10)).status == 200
        left = int(str((await api.ask("GET", "/v1/models", RIGHT)).headers.get("x-ratelimit-remaining-tokens")))
        prompt = 70 - left - 10
        assert (await api.chat(max_tokens=left - prompt + 1)).status == 429
        assert (await api.chat(max_tokens=left - prompt)).status == 200


@pytest.mark.spec("ACC-53")
async def test_a_request_larger_than_the_limit_is_400_before_the_backend_sees_it() -> None:
    async with guarded(Limits(tokens_per_minute=5)) as api:
        answer = await api.chat()
        assert (answer.status, error_of(answer)["code"]) == (400, "rate_limit_exceeded")
        assert api.backend.requests == []


@pytest.mark.spec("ACC-21")
async def test_counting_tokens_uses_no_tokens() -> None:
    async with guarded(Limits(tokens_per_minute=5)) as api:
        body = {"model": "succ", "messages": chat_body()["messages"]}
        answer = await api.ask("POST", f"{CHAT}/input_tokens", RIGHT, body=body)
        assert (answer.status, answer.headers.get("x-ratelimit-remaining-tokens")) == (200, "5")
        after = await api.ask("POST", "/v1/tokenize", RIGHT, body={"model": "succ", "text": "a"})
        assert (after.status, after.headers.get("x-ratelimit-remaining-tokens")) == (200, "5")


@pytest.mark.spec("ACC-21")
async def test_embeddings_count_their_tokens() -> None:
    async with guarded(Limits(tokens_per_minute=10)) as api:
        body = {"model": "succ", "input": ["abcd", "ef"]}
        assert (await api.ask("POST", "/v1/embeddings", RIGHT, body=body)).status == 200
        assert (await api.ask("POST", "/v1/embeddings", RIGHT, body=body)).status == 429


@pytest.mark.spec("ACC-22")
async def test_a_permit_is_held_until_the_stream_ends(autojump_clock: MockClock) -> None:
    async with guarded(Limits(concurrent_streams=1), Script(token_s=1.0)) as api:
        first = api.server.connect()
        stream = await first.open("POST", CHAT, [RIGHT], json.dumps(chat_body(stream=True)).encode())
        await stream.receive()
        refused = await api.chat()
        assert (refused.status, refused.headers.get("retry-after")) == (429, "1")
        assert (await api.ask("GET", "/v1/models", RIGHT)).status == 200
        await stream.read()
        assert (await api.chat()).status == 200
        await first.aclose()


@pytest.mark.spec("ACC-22")
@pytest.mark.parametrize("end", ["client leaves", "client leaves before the head", "backend fails", "bad body"])
async def test_a_permit_is_freed_however_the_request_ends(end: str, autojump_clock: MockClock) -> None:
    failure = RuntimeError("the backend broke") if end == "backend fails" else None
    queue_s = 100.0 if end == "client leaves before the head" else 0.0
    script = Script(token_s=1.0, failure=failure, fail_before=1, queue_s=queue_s)
    async with guarded(Limits(concurrent_streams=1), script) as api:
        client = api.server.connect()
        body = b"{" if end == "bad body" else json.dumps(chat_body(stream=True)).encode()
        request = (
            f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        await client.stream.send_all(request.encode() + body)
        if end.startswith("client leaves"):
            await trio.sleep(0.5)
            assert open_streams(api.door) == {"ci": 1}
            await client.disconnect()
            await trio.sleep(0.1)
        else:
            await read_available(client.stream)
            await trio.sleep(10)
        assert open_streams(api.door) == {}


@pytest.mark.spec("ACC-51")
async def test_a_client_that_leaves_the_queue_uses_no_tokens(autojump_clock: MockClock) -> None:
    async with guarded(Limits(tokens_per_minute=50), Script(queue_s=100.0)) as api:
        client = api.server.connect()
        with trio.move_on_after(1):
            await client.request("POST", CHAT, [RIGHT], json.dumps(chat_body()).encode())
        during = await api.ask("GET", "/v1/models", RIGHT)
        await client.disconnect()
        await trio.sleep(0.1)
        after = await api.ask("GET", "/v1/models", RIGHT)
        assert int(str(during.headers.get("x-ratelimit-remaining-tokens"))) < 50
        assert after.headers.get("x-ratelimit-remaining-tokens") == "50"


# --- CORS


@pytest.mark.spec("ACC-44", "ACC-58", "ACC-59")
async def test_a_preflight_needs_no_key_and_the_following_answer_is_readable() -> None:
    asked = (("Origin", APP), ("Access-Control-Request-Method", "POST"))
    async with guarded(cors=(APP,)) as api:
        preflight = await api.ask("OPTIONS", CHAT, *asked, ("Access-Control-Request-Headers", "authorization"))
        assert (preflight.status, preflight.headers.get("access-control-allow-origin")) == (204, APP)
        assert preflight.headers.get("access-control-allow-headers") == "authorization"
        for answer in (await api.chat(RIGHT, ("Origin", APP)), await api.chat(("Origin", APP))):
            assert answer.headers.get_all("access-control-allow-origin") == (APP,)
        stream = await api.chat(RIGHT, ("Origin", APP), stream=True)
        assert stream.headers.get_all("access-control-allow-origin") == (APP,)


@pytest.mark.spec("ACC-59")
async def test_a_preflight_of_another_origin_or_path_needs_a_key() -> None:
    asked = ("Access-Control-Request-Method", "POST")
    async with guarded(cors=(APP,)) as api:
        assert (await api.ask("OPTIONS", CHAT, ("Origin", "https://evil.example.com"), asked)).status == 401
        assert (await api.ask("OPTIONS", "/v1/nothing", ("Origin", APP), asked)).status == 401
        assert (await api.ask("OPTIONS", CHAT, ("Origin", APP))).status == 401
    async with guarded() as api:
        answer = await api.ask("OPTIONS", CHAT, ("Origin", APP), asked)
        assert (answer.status, answer.headers.get("access-control-allow-origin")) == (401, None)


@pytest.mark.spec("ACC-49")
async def test_new_keys_apply_to_the_next_request_and_open_streams_continue(autojump_clock: MockClock) -> None:
    async with guarded(script=Script(token_s=1.0)) as api:
        client = api.server.connect()
        stream = await client.open("POST", CHAT, [RIGHT], json.dumps(chat_body(stream=True)).encode())
        await wait_all_tasks_blocked()
        api.door.replace_keys(KeyRing())
        assert (await api.chat()).status == 401
        assert (await stream.read()).endswith(b"data: [DONE]\n\n")
        await client.aclose()
