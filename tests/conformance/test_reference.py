"""The reference's tests, under its names, over a real socket."""

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPException

import attrs
import numpy as np
import pytest

from tests.kit.engine.gated_model import GatedModel
from tests.kit.http.http_calls import call, chat, content_of, get, opened, post
from tlserve.chat.templates.template import DEFAULT_TEMPLATE, Template
from tlserve.kernels.interface import StepBatch
from tlserve.model.load import builtin_model_path, load_model
from tlserve.testing import serve_in_thread

CHAT = "/v1/chat/completions"


@contextmanager
def gated_server(settings=None) -> Iterator[tuple]:
    """Serve the built-in model behind a gate, with two threads for clients; the gate always opens at the end of the block."""
    loaded = load_model(builtin_model_path("succ"))
    gate = GatedModel(loaded.model)
    loaded = attrs.evolve(loaded, model=gate)
    with serve_in_thread("succ", loaded=loaded, settings=settings) as server, ThreadPoolExecutor(2) as threads:
        try:
            yield gate, server, threads
        finally:
            gate.open_all()


def test_hand_example_chat_completion(succ_server):
    reply = post(succ_server.address, CHAT, chat("a", max_tokens=3))
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    answer = reply.json
    assert set(answer) == {"id", "object", "created", "model", "choices", "usage", "system_fingerprint"}
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert abs(answer["created"] - time.time()) < 60
    assert answer["model"] == "succ"
    (choice,) = answer["choices"]
    assert choice["index"] == 0
    assert choice["message"] == {"role": "assistant", "content": "bcd", "refusal": None}
    assert choice["finish_reason"] == "length"
    assert choice["logprobs"] is None
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (1, 3, 4)


def test_stream_framing_role_first_then_done(succ_server):
    body = chat("a", max_tokens=3, stream=True, stream_options={"include_usage": True})
    reply = post(succ_server.address, CHAT, body)
    assert reply.status == 200
    assert reply.headers["content-type"].partition(";")[0] == "text/event-stream"
    *chunks, done = reply.events
    assert done == "[DONE]"
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas == [{"role": "assistant", "content": ""}, {"content": "b"}, {"content": "c"}, {"content": "d"}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None, None, None, "length"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == 4


def test_stream_equals_nonstream_at_temperature_0(tiny_server):
    for text in ("Hello", "the quick brown fox", "ä€😀", "x" * 300):
        body = chat(text, model="tiny", max_tokens=48)
        whole = post(tiny_server.address, CHAT, body).json["choices"][0]
        events = post(tiny_server.address, CHAT, {**body, "stream": True}).events
        assert content_of(events) == whole["message"]["content"]
        assert events[-2]["choices"][0]["finish_reason"] == whole["finish_reason"]


def test_seed_reproduces_sampling(tiny_server):
    def sample(seed):
        body = chat("Hello", model="tiny", max_tokens=32, temperature=1, seed=seed)
        return post(tiny_server.address, CHAT, body).json["choices"][0]["message"]["content"]

    assert sample(7) == sample(7)
    assert sample(7) != sample(8)


def test_stop_strings_end_generation_across_tokens(succ_server):
    body = chat("a", max_tokens=10, stop=["de"])
    whole = post(succ_server.address, CHAT, body).json["choices"][0]
    assert (whole["message"]["content"], whole["finish_reason"]) == ("bc", "stop")
    events = post(succ_server.address, CHAT, {**body, "stream": True}).events
    assert content_of(events) == "bc"
    assert events[-2]["choices"][0]["finish_reason"] == "stop"


U = [{"role": "user", "content": "a"}]
PICTURE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]
BAD_REQUESTS = [
    # path, body, status, param, code
    (CHAT, b"{", 400, None, None),
    (CHAT, {"model": "succ", "messages": U, "temperature": -1}, 400, "temperature", None),
    (CHAT, {"model": "succ", "messages": U, "top_p": 0}, 400, "top_p", None),
    (CHAT, {"model": "succ", "messages": U, "max_tokens": 0}, 400, "max_tokens", None),
    (CHAT, {"model": "succ", "messages": U, "stop": list("abcde")}, 400, "stop", None),
    (CHAT, {"model": "succ", "messages": U, "best_of": 2}, 422, "best_of", "unsupported_parameter"),
    ("/v1/completions", {"model": "succ", "prompt": "a", "best_of": 2}, 422, "best_of", "unsupported_parameter"),
    (CHAT, {"model": "succ", "messages": PICTURE}, 422, "messages[0].content", "unsupported_parameter"),
    (
        CHAT,
        {"model": "succ", "messages": U, "tools": TOOLS, "tool_choice": {"type": "custom"}},
        422,
        "tool_choice",
        "unsupported_parameter",
    ),
    (
        CHAT,
        {"model": "succ", "messages": U, "structured_outputs": {"structural_tag": "x"}},
        422,
        "structured_outputs.structural_tag",
        "unsupported_parameter",
    ),
    (CHAT, {"model": "nobody", "messages": U}, 404, "model", "model_not_found"),
    (CHAT, {"model": "succ", "messages": U, "max_tokens": 5000}, 400, "max_tokens", "context_length_exceeded"),
    ("/v1/nowhere", {}, 404, None, "not_found"),
]


@pytest.mark.parametrize("bad", BAD_REQUESTS, ids=lambda bad: f"{bad[2]}-{bad[3] or bad[4]}")
def test_errors_use_the_openai_shape(succ_server, bad):
    path, body, status, param, code = bad
    assert len(BAD_REQUESTS) == 13
    reply = post(succ_server.address, path, body)
    assert reply.status == status
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers.get("x-request-id")
    error = reply.json["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert error["code"] == code


def test_completions_endpoint_and_usage(succ_server):
    reply = post(succ_server.address, "/v1/completions", {"model": "succ", "prompt": "ab", "temperature": 0})
    assert reply.status == 200
    answer = reply.json
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["choices"][0]["text"] == "cdefghijklmnopqr"
    assert answer["choices"][0]["finish_reason"] == "length"
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (2, 16, 18)


def test_usage_counts_the_templated_prompt():
    loaded = attrs.evolve(load_model(builtin_model_path("succ")), chat_template=None)
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    rendered = Template.parse(DEFAULT_TEMPLATE).render({"messages": messages, "add_generation_prompt": True})
    assert rendered == "<|system|>\nBe kind.\n<|user|>\nHi\n<|assistant|>\n"
    with serve_in_thread("succ", loaded=loaded) as server:
        reply = post(server.address, CHAT, {"model": "succ", "messages": messages, "max_tokens": 1})
    assert reply.json["usage"]["prompt_tokens"] == len(rendered.encode())


def test_full_queue_answers_429_with_retry_after():
    body = chat("a", max_tokens=3)
    with gated_server({"engine.max_num_seqs": 1, "engine.queue_capacity": 1}) as (gate, server, threads):
        running = threads.submit(post, server.address, CHAT, body)
        gate.wait_for_step()
        leaver = send_only(server.address, body)
        wait_until(lambda: server.server.running.assembled.backend.admitted == 2)
        refused = post(server.address, CHAT, body)
        assert refused.status == 429
        assert int(refused.headers.get("retry-after", 0)) >= 1
        assert refused.json["error"]["code"] == "rate_limit_exceeded"
        assert refused.json["error"]["type"] == "rate_limit_error"
        # a client that leaves the queue gives its place to the next
        leaver.close()
        wait_until(lambda: server.server.running.assembled.backend.admitted == 1)
        queued = threads.submit(post, server.address, CHAT, body)
        wait_until(lambda: server.server.running.assembled.backend.admitted == 2)
        gate.open_all()
        for answered in (running.result(), queued.result()):
            assert answered.json["choices"][0]["message"]["content"] == "bcd"
    assert gate.steps == 6, "the request whose client left was computed"


def send_only(address, body):
    """Send a chat request and return the socket, nothing read."""
    host, _, port = address.rpartition(":")
    client = socket.create_connection((host, int(port)))
    data = json.dumps(body).encode()
    client.sendall(
        b"POST %b HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b" % (CHAT.encode(), len(data), data)
    )
    return client


def test_disconnect_frees_blocks_within_a_step(tiny_server):
    body = chat("Hello", model="tiny", max_tokens=400, stream=True, ignore_eos=True)
    with opened(tiny_server.address, "POST", CHAT, body) as response:
        assert response.readline().startswith(b"data: ")
        assert metric(tiny_server, "tl_engine_active_sequences") == 1
    deadline = time.monotonic() + 2
    while metric(tiny_server, "tl_engine_active_sequences") or metric(tiny_server, 'tl_engine_kv_blocks{state="used"}'):
        assert time.monotonic() < deadline, "the blocks of a client that left are still in use"


def test_drain_finishes_in_flight_and_refuses_new():
    body = chat("a", max_tokens=5, stream=True)
    with gated_server() as (gate, server, threads):
        assert get(server.health_address, "/readyz").status == 200
        stream = threads.submit(post, server.address, CHAT, body)
        gate.wait_for_step()
        server.drain()
        wait_until(lambda: health_status(server, "/readyz") == 503)
        assert health_status(server, "/healthz") == 200
        with pytest.raises(ConnectionError):
            get(server.address, "/v1/models")
        gate.open_all()
        events = stream.result().events
        assert content_of(events) == "bcdef"
        assert events[-1] == "[DONE]"
        assert server.join() == 0


def test_embeddings_are_mean_pooled_and_normalized(tiny_server, tiny_path):
    texts = ["Hello", "a", "the quick brown fox jumps over the lazy dog " * 8]
    body = {"model": "tiny", "input": texts, "encoding_format": "float"}
    answer = post(tiny_server.address, "/v1/embeddings", body).json
    assert answer["object"] == "list"
    assert [row["index"] for row in answer["data"]] == [0, 1, 2]
    assert answer["usage"]["prompt_tokens"] == sum(len(text) for text in texts)
    model = load_model(tiny_path).model
    for text, row in zip(texts, answer["data"], strict=True):
        mean = hidden_states(model, text.encode()).astype(np.float64).mean(axis=0)
        np.testing.assert_allclose(row["embedding"], mean / np.linalg.norm(mean), atol=1e-6)


def hidden_states(model, ids):
    """Return the final-normed hidden state of every token, from a separate forward pass."""
    count = len(ids)
    rows = np.arange(count, dtype=np.int32)
    batch = StepBatch(
        tokens=np.frombuffer(ids, np.uint8).astype(np.int32),
        positions=rows,
        row_starts=np.array([0, count], np.int32),
        block_tables=(np.arange(-(-count // 16), dtype=np.int32),),
        logit_rows=rows[:0],
        hidden_rows=rows,
    )
    return model.forward(batch, model.new_kv_store(-(-count // 16), 16)).hidden


@pytest.mark.spec("LIFE-8")
def test_tokenize_models_health_and_request_id(succ_server):
    reply = post(succ_server.address, "/v1/tokenize", {"model": "succ", "text": "abc"}, X_Request_Id="trace-7")
    assert (reply.json["tokens"], reply.json["count"]) == ([97, 98, 99], 3)
    assert reply.headers.get("x-request-id") == "trace-7"
    models = get(succ_server.address, "/v1/models").json
    assert models["object"] == "list"
    assert [model["id"] for model in models["data"]] == ["succ"]
    assert get(succ_server.address, "/v1/models/succ").json["object"] == "model"
    assert get(succ_server.address, "/v1/models/other").status == 404
    for address in (succ_server.address, succ_server.health_address):
        healthy, absent = get(address, "/healthz", X_Request_Id="trace-8"), get(address, "/nowhere")
        assert (healthy.status, healthy.headers.get("x-request-id")) == (200, "trace-8")
        assert (absent.status, set(absent.json["error"])) == (404, {"message", "type", "param", "code"})
        assert absent.headers.get("x-request-id")
    assert get(succ_server.health_address, "/readyz").status == 200
    generated = [get(succ_server.address, "/v1/models").headers.get("x-request-id") for _ in range(2)]
    assert generated[0] != generated[1]
    assert all(generated)


def test_concurrent_streams_equal_serial(tiny_server):
    bodies = [
        chat(f"prompt {i}", model="tiny", max_tokens=24, stream=True, seed=i, temperature=i % 2) for i in range(8)
    ]
    serial = [content_of(post(tiny_server.address, CHAT, body).events) for body in bodies]
    with ThreadPoolExecutor(8) as threads:
        parallel = list(threads.map(lambda body: content_of(post(tiny_server.address, CHAT, body).events), bodies))
    assert parallel == serial
    answered_while_a_step_waits()


def answered_while_a_step_waits():
    """While one request's step waits at the gate, other connections are served."""
    with gated_server() as (gate, server, threads):
        stuck = threads.submit(post, server.address, CHAT, chat("a", max_tokens=3))
        gate.wait_for_step()
        assert answers_within(server.address, "/v1/models", 10), "a step holds up another connection"
        gate.open_all()
        assert stuck.result().status == 200


def answers_within(address, path, timeout_s):
    try:
        return call(address, "GET", path, timeout_s=timeout_s).status == 200
    except TimeoutError:
        return False


def test_speculative_runtime_config_drives_the_serving_path(tiny_path, tiny_server, succ_server):
    settings = {"engine.speculative": "prompt_lookup"}
    for model, plain in ((tiny_path, tiny_server), ("succ", succ_server)):
        name = "succ" if model == "succ" else "tiny"
        body = chat("abcdefghijklmnop, and again: abcd", model=name, max_tokens=40)
        with serve_in_thread(model, settings=settings) as server:
            drafted, expected = post(server.address, CHAT, body).json, post(plain.address, CHAT, body).json
            assert drafted["choices"] == expected["choices"]
            assert drafted["usage"]["completion_tokens"] == expected["usage"]["completion_tokens"] == 40
            if name == "succ":  # its answer repeats the prompt, so that drafts are made and are right
                assert metric(server, "tl_engine_accepted_tokens_total") > 5


# --- reading the health port


def metric(server, name):
    """Return one sample of /metrics."""
    lines = get(server.health_address, "/metrics").body.decode().splitlines()
    (value,) = [line.rpartition(" ")[2] for line in lines if line.startswith(f"{name} ")]
    return float(value)


def health_status(server, path):
    """Return a status of the health port, which must answer as long as a request is open."""
    try:
        return get(server.health_address, path).status
    except (ConnectionError, HTTPException):
        pytest.fail("the health port closed before the open requests")


def wait_until(condition, timeout_s=10):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
