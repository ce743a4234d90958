"""Every refusal has the public form: status, type, param, code, and headers."""

import json
from typing import Any, cast

import pytest

from tests.kit.scripted_backend import Script, ScriptedBackend
from tlserve.config.tables.network import HttpSettings
from tlserve.errors import Draining, EngineFailed, Overloaded, TlserveError

INVALID = "invalid_request_error"
USER = {"role": "user", "content": "a"}
IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}

TOOLS = [{"type": "function", "function": {"name": "f"}}]
THIRTEEN = [
    ({"temperature": -1}, 400, "temperature", None),
    ({"temperature": 2.5}, 400, "temperature", None),
    ({"top_p": 0}, 400, "top_p", None),
    ({"max_tokens": 0}, 400, "max_tokens", None),
    ({"stop": ["a", "b", "c", "d", "e"]}, 400, "stop", None),
    ({"messages": []}, 400, "messages", None),
    ({"model": "nope"}, 404, "model", "model_not_found"),
    ({"max_tokens": 1000}, 400, "max_tokens", "context_length_exceeded"),
    ({"n": 2, "best_of": 3}, 422, "best_of", "unsupported_parameter"),
    ({"functions": [{"name": "f"}]}, 422, "functions", "unsupported_parameter"),
    ({"tools": TOOLS, "tool_choice": {"type": "custom"}}, 422, "tool_choice", "unsupported_parameter"),
    (
        {"structured_outputs": {"structural_tag": "x"}},
        422,
        "structured_outputs.structural_tag",
        "unsupported_parameter",
    ),
    ({"messages": [IMAGE]}, 422, "messages[0].content", "unsupported_parameter"),
]


@pytest.mark.spec("API-31")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("fields", "status", "param", "code"), THIRTEEN)
async def test_thirteen_bad_requests_get_the_public_error_form_for_any_stream(
    open_api, fields: dict[str, Any], status: int, param: str, code: str | None, stream: bool
) -> None:
    backend = ScriptedBackend()
    async with open_api(backend) as api:
        answer = await api.chat(stream=stream, **fields)
    assert answer.status == status
    assert answer.headers.get("content-type") == "application/json"
    assert answer.headers.get("x-request-id")
    error = json.loads(answer.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == (INVALID, param, code)
    assert error["message"]
    assert backend.requests == []


@pytest.mark.spec("CASE-18", "API-1")
@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'"x"', b"null", b'{"model":NaN}', b'{"a":1}x', "{}".encode("utf-16")]
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/tokenize"])
async def test_a_body_that_is_not_an_object_is_400_on_every_route(open_api, path: str, body: bytes) -> None:
    async with open_api() as api:
        answer = await api.post(path, body)
        again = await api.chat()
    assert (answer.status, again.status) == (400, 200)
    assert json.loads(answer.body)["error"]["type"] == INVALID


@pytest.mark.spec("API-1")
async def test_the_depth_of_a_body_is_a_setting(open_api) -> None:
    deep: Any = {"model": "succ", "text": "a", "zz": [[[[]]]]}
    async with open_api(settings=HttpSettings(max_json_depth=5)) as api:
        assert (await api.post("/v1/tokenize", deep)).status == 200
    async with open_api(settings=HttpSettings(max_json_depth=4)) as api:
        assert (await api.post("/v1/tokenize", deep)).status == 400


@pytest.mark.spec("API-32")
@pytest.mark.parametrize(
    ("error", "status", "kind", "code", "retry_after"),
    [
        (Overloaded("the queue is full", retry_after_s=7), 429, "rate_limit_error", "rate_limit_exceeded", "7"),
        (Draining("the server is shutting down"), 503, "server_error", "draining", "1"),
        (EngineFailed("the engine failed"), 500, "server_error", "engine_failed", None),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refusal_of_the_backend_has_its_status_and_retry_after(
    open_api, error: TlserveError, status: int, kind: str, code: str, retry_after: str | None, path: str, stream: bool
) -> None:
    body = {"model": "succ", "messages": [USER], "prompt": "a", "input": "a", "stream": stream}
    async with open_api(ScriptedBackend(Script(refusal=error))) as api:
        answer = await api.post(path, body)
    assert (answer.status, answer.headers.get("retry-after")) == (status, retry_after)
    fields = json.loads(answer.body)["error"]
    assert (fields["type"], fields["code"], fields["message"]) == (kind, code, str(error))


@pytest.mark.spec("API-33")
async def test_an_unexpected_error_is_500_without_details(open_api) -> None:
    async with open_api(ScriptedBackend(Script(refusal=cast("TlserveError", ZeroDivisionError("secret"))))) as api:
        answer = await api.chat()
    assert answer.status == 500
    assert b"secret" not in answer.body
    assert json.loads(answer.body)["error"]["type"] == "server_error"


# --- headers ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-35")
@pytest.mark.parametrize("value", ["101", "-101", "1.5", "high", "", "+5", "0x1", "٣", "1 2"])
async def test_a_priority_that_is_not_an_integer_in_range_is_refused(open_api, value: str) -> None:
    async with open_api() as api:
        answer = await api.chat("a", ("X-TL-Priority", value.encode().decode("latin-1")))
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["param"]) == (400, "X-TL-Priority")


@pytest.mark.spec("API-35")
@pytest.mark.parametrize(("value", "priority"), [("-100", -100), ("100", 100), ("0", 0), ("-0", 0), (None, 0)])
async def test_a_priority_in_range_reaches_the_backend(open_api, value: str | None, priority: int) -> None:
    backend = ScriptedBackend()
    async with open_api(backend) as api:
        await api.chat("a", *([] if value is None else [("X-TL-Priority", value)]))
    assert backend.requests[0].priority == priority


@pytest.mark.spec("API-35")
async def test_a_kv_handle_is_not_found(open_api) -> None:
    async with open_api() as api:
        answer = await api.chat("a", ("X-TL-KV-Handle", "abc"))
    assert (answer.status, json.loads(answer.body)["error"]["code"]) == (404, "kv_handle_not_found")


@pytest.mark.spec("API-113")
@pytest.mark.parametrize("header", ["X-TL-Strict", "X-TL-Return-Seed", "X-TL-Special-Tokens"])
async def test_a_switch_accepts_only_0_and_1(open_api, header: str) -> None:
    body = {"model": "succ", "prompt": "a"}
    async with open_api() as api:
        off = await api.post("/v1/completions", body, (header, "0"))
        odd = await api.post("/v1/completions", body, (header, "yes"))
    assert (off.status, odd.status, json.loads(odd.body)["error"]["param"]) == (200, 400, header)


# --- request ids and routes -------------------------------------------------------------------------------------


@pytest.mark.spec("API-34")
@pytest.mark.parametrize("path", ["/v1/models", "/healthz", "/nowhere", "/v1/chat/completions", "/v1/models/nope"])
async def test_every_answer_echoes_the_request_id_or_has_a_fresh_one(open_api, path: str) -> None:
    async with open_api() as api:
        echoed = await api.get(path, ("X-Request-Id", "mine 1"))
        replaced = await api.get(path, ("X-Request-Id", "x" * 129))
        fresh = await api.get(path)
    assert echoed.headers.get_all("x-request-id") == ("mine 1",)
    assert (replaced.headers.get("x-request-id"), fresh.headers.get("x-request-id")) == ("id0", "id1")


@pytest.mark.spec("API-31")
async def test_faults_of_the_http_layer_have_the_same_form_and_a_request_id(open_api) -> None:
    async with open_api(settings=HttpSettings(max_body_bytes=10)) as api:
        large = await api.chat()
        raw = await api.server.exchange([b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: -\r\n\r\n"])
    assert (large.status, json.loads(large.body)["error"]["code"]) == (413, "request_too_large")
    assert [(record.method, record.status) for record in api.records] == [("POST", 413), ("-", 400)]
    head, _, body = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert b"X-Request-Id: " in head
    assert json.loads(body)["error"]["type"] == INVALID


@pytest.mark.spec("API-36")
async def test_an_unknown_path_is_404_and_a_wrong_method_405_with_allow(open_api) -> None:
    async with open_api() as api:
        unknown = await api.get("/v1/nothing")
        wrong = await api.get("/v1/completions")
        deleted = await api.server.client.request("DELETE", "/v1/models/succ")
    assert (unknown.status, json.loads(unknown.body)["error"]["code"]) == (404, "not_found")
    assert (wrong.status, wrong.headers.get("allow")) == (405, "OPTIONS, POST")
    assert json.loads(wrong.body)["error"]["code"] == "method_not_allowed"
    assert (deleted.status, deleted.headers.get("allow")) == (405, "GET, HEAD, OPTIONS")


@pytest.mark.spec("API-36")
async def test_options_answers_with_allow_and_head_is_get_without_its_body(open_api) -> None:
    async with open_api() as api:
        options = await api.server.client.request("OPTIONS", "/v1/models")
        everywhere = await api.server.client.request("OPTIONS", "*")
        head = await api.server.client.request("HEAD", "/v1/models")
    assert (options.status, options.headers.get("allow"), options.body) == (204, "GET, HEAD, OPTIONS", b"")
    assert "x-request-id" in options.headers
    assert (everywhere.status, everywhere.headers.get("allow")) == (204, "DELETE, GET, HEAD, OPTIONS, POST")
    assert (head.status, head.body) == (200, b"")


# --- the log ----------------------------------------------------------------------------------------------------


@pytest.mark.spec("API-37")
async def test_each_request_is_logged_once_with_its_cost(open_api) -> None:
    async with open_api(ScriptedBackend(Script(cached_tokens=1))) as api:
        await api.chat()
        await api.chat(stream=True)
        await api.chat(best_of=2)
        await api.get("/nowhere")
        records = api.records
    assert [(r.method, r.path, r.status) for r in records] == [
        ("POST", "/v1/chat/completions", 200),
        ("POST", "/v1/chat/completions", 200),
        ("POST", "/v1/chat/completions", 422),
        ("GET", "/nowhere", 404),
    ]
    assert [(r.error, r.param) for r in records] == [
        (None, None),
        (None, None),
        ("unsupported_parameter", "best_of"),
        ("not_found", None),
    ]
    for record in records[:2]:
        assert (record.model, record.prompt_tokens, record.cached_tokens, record.completion_tokens) == ("succ", 1, 1, 3)
        assert record.finish == "length"
        assert 0 <= record.queue_ms <= record.first_token_ms <= record.total_ms
