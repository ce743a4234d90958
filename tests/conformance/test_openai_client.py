"""The official openai client as it is used: whole and streamed answers, typed errors, retries, timeouts."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest

from tests.kit.http.gated_server import gated_succ
from tests.kit.http.http_calls import opened
from tlserve.testing import serve_in_thread

USER_A = [{"role": "user", "content": "a"}]
HAND = {"model": "succ", "messages": USER_A, "max_tokens": 3, "temperature": 0}


def client_of(server, **options):
    """Return a client that tries once, unless `options` change that."""
    return openai.OpenAI(base_url=server.base_url, api_key="none", **{"max_retries": 0, **options})


@pytest.fixture(scope="module")
def client(succ_server):
    with client_of(succ_server) as client:
        yield client


@pytest.fixture(scope="module")
def tiny_client(tiny_server):
    with client_of(tiny_server) as client:
        yield client


# --- chat


def test_a_chat_answers(client):
    answer = client.chat.completions.create(**HAND)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "bcd", "length")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (1, 3, 4)
    assert answer._request_id


def test_a_chat_streams_with_its_usage(client):
    chunks = list(client.chat.completions.create(**HAND, stream=True, stream_options={"include_usage": True}))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content for chunk in chunks[:-1]) == "bcd"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None, None, None, "length"]
    assert (chunks[-1].choices, chunks[-1].usage.total_tokens) == ([], 4)
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * 4


def test_the_stream_helper_assembles_the_whole_answer(client):
    with client.chat.completions.stream(**HAND, stop="d") as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "content.delta" in kinds
    assert (final.choices[0].message.content, final.choices[0].finish_reason) == ("bc", "stop")


def test_a_stream_that_is_closed_early_leaves_the_connection_pool_usable(client):
    with client.chat.completions.create(**{**HAND, "max_tokens": 4000}, stream=True) as stream:
        assert next(iter(stream)).choices[0].delta.role == "assistant"
    assert client.chat.completions.create(**HAND).choices[0].message.content == "bcd"


def test_logprobs_are_typed_and_their_bytes_join_to_the_content(tiny_client):
    asked = {
        "model": "tiny",
        "messages": USER_A,
        "max_tokens": 5,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 3,
    }
    whole = tiny_client.chat.completions.create(**asked).choices[0]
    entries = whole.logprobs.content
    assert len(entries) == 5
    assert bytes(byte for entry in entries for byte in entry.bytes).decode(errors="replace") == whole.message.content
    assert all(len(entry.top_logprobs) == 3 and entry.top_logprobs[0].logprob == entry.logprob for entry in entries)
    chunks = tiny_client.chat.completions.create(**asked, stream=True)
    streamed = [entry for c in chunks if c.choices[0].logprobs for entry in c.choices[0].logprobs.content]
    assert [entry.logprob for entry in streamed] == [entry.logprob for entry in entries]


def test_a_seed_repeats_an_answer_and_another_seed_does_not(tiny_client):
    def sample(seed):
        answer = tiny_client.chat.completions.create(model="tiny", messages=USER_A, max_tokens=24, seed=seed)
        return answer.choices[0].message.content, answer.system_fingerprint

    assert sample(7) == sample(7)
    assert sample(7)[0] != sample(8)[0]


def test_stops_and_the_newer_limit_are_honoured(client):
    stopped = client.chat.completions.create(**{**HAND, "max_tokens": 20}, stop=["de", "x"]).choices[0]
    assert (stopped.message.content, stopped.finish_reason) == ("bc", "stop")
    limited = client.chat.completions.create(model="succ", messages=USER_A, max_completion_tokens=2, temperature=0)
    assert limited.choices[0].message.content == "bc"


def test_fields_beyond_the_public_ones_go_through_extra_body(client):
    raw = client.chat.completions.with_raw_response.create(**HAND, extra_body={"min_p": 0.1, "made_up": 1})
    assert raw.parse().choices[0].message.content == "bcd"
    assert raw.headers["x-tl-ignored"] == "made_up"


# --- the other routes


def test_a_completion_answers_and_streams(client):
    whole = client.completions.create(model="succ", prompt="ab", temperature=0)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("cdefghijklmnopqr", "length")
    chunks = client.completions.create(model="succ", prompt="ab", temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text


def test_embeddings_are_the_same_in_the_clients_default_and_as_floats(tiny_client):
    texts = ["Hello", "a"]
    default = tiny_client.embeddings.create(model="tiny", input=texts)
    floats = tiny_client.embeddings.create(model="tiny", input=texts, encoding_format="float")
    assert [row.index for row in default.data] == [0, 1]
    for one, other in zip(default.data, floats.data, strict=True):
        np.testing.assert_array_equal(np.float32(one.embedding), np.float32(other.embedding))
        assert np.linalg.norm(one.embedding) == pytest.approx(1, abs=1e-6)


def test_models_are_listed_and_retrieved(client):
    assert [model.id for model in client.models.list()] == ["succ"]
    assert client.models.retrieve("succ").object == "model"


# --- errors


@pytest.mark.parametrize(
    ("change", "error", "param", "code"),
    [
        ({"model": "nobody"}, openai.NotFoundError, "model", "model_not_found"),
        ({"temperature": 3}, openai.BadRequestError, "temperature", None),
        ({"max_tokens": 5000}, openai.BadRequestError, "max_tokens", "context_length_exceeded"),
        ({"functions": [{"name": "f"}]}, openai.UnprocessableEntityError, "functions", "unsupported_parameter"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_error_is_typed_and_names_the_field_to_fix(client, change, error, param, code, stream):
    with pytest.raises(error) as caught:
        client.chat.completions.create(**{**HAND, **change}, stream=stream)
    assert (caught.value.type, caught.value.param, caught.value.code) == ("invalid_request_error", param, code)
    assert caught.value.request_id
    assert caught.value.body["message"] in str(caught.value)


def test_a_model_that_is_not_served_is_not_found_on_any_route(client):
    for call in (
        lambda: client.models.retrieve("nobody"),
        lambda: client.completions.create(model="nobody", prompt="a"),
        lambda: client.embeddings.create(model="nobody", input="a"),
    ):
        with pytest.raises(openai.NotFoundError):
            call()


def test_raw_responses_have_the_headers_and_the_callers_request_id(client):
    raw = client.chat.completions.with_raw_response.create(**HAND, extra_headers={"X-Request-Id": "trace-7"})
    assert (raw.status_code, raw.request_id, raw.headers["content-type"]) == (200, "trace-7", "application/json")
    with client.chat.completions.with_streaming_response.create(**HAND, stream=True) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert list(response.iter_lines())[-2:] == ["data: [DONE]", ""]


# --- overload, retries, time-outs: the gate controls the order


@pytest.fixture
def full_server():
    """A server with capacity for one request, which is in use; while it is open every other request is refused."""
    gate, loaded = gated_succ()
    settings = {"engine.max_num_seqs": 1, "engine.queue_capacity": 0}
    with (
        serve_in_thread("succ", loaded=loaded, settings=settings) as server,
        ThreadPoolExecutor(1) as threads,
        client_of(server) as client,
    ):
        running = threads.submit(client.chat.completions.create, **HAND)
        gate.wait_for_step()
        yield server, gate
        gate.open_all()
        assert running.result().choices[0].message.content == "bcd"


def test_a_full_queue_is_a_rate_limit_error_with_the_time_to_wait(full_server):
    server, _ = full_server
    with client_of(server) as client, pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(**HAND)
    assert caught.value.code == "rate_limit_exceeded"
    assert int(caught.value.response.headers["retry-after"]) >= 1


def retrying(server, attempts, on_answer):
    """Return a client that tries again, and notes the status of each attempt after calling `on_answer`."""

    def note(response):
        on_answer()
        attempts.append(response.status_code)

    http = openai.DefaultHttpxClient(event_hooks={"response": [note]})
    return client_of(server, max_retries=3, http_client=http)


def test_the_client_retries_after_a_429_and_succeeds(full_server):
    server, gate = full_server
    attempts = []
    with retrying(
        server, attempts, gate.open_all
    ) as client:  # the place is freed while the client waits for its Retry-After
        assert client.chat.completions.create(**HAND).choices[0].message.content == "bcd"
    assert attempts == [429, 200]


def test_the_client_retries_after_a_503():
    gate, loaded = gated_succ()
    settings = {"engine.max_num_seqs": 1, "engine.queue_deadline_ms": 50}
    attempts = []
    with (
        serve_in_thread("succ", loaded=loaded, settings=settings) as server,
        ThreadPoolExecutor(1) as threads,
        client_of(server) as first,
        retrying(server, attempts, gate.open_all) as second,
    ):
        running = threads.submit(first.chat.completions.create, **HAND)
        for _ in range(2):
            gate.wait_for_step()
            gate.open_one()
        gate.wait_for_step()
        assert second.chat.completions.create(**HAND).choices[0].message.content == "bcd"
        assert running.result().choices[0].message.content == "bcd"
    assert attempts == [503, 200]


def wait_until(condition):
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline


def test_a_timeout_of_the_client_aborts_its_request():
    gate, loaded = gated_succ()
    with serve_in_thread("succ", loaded=loaded) as server, client_of(server) as client:
        with pytest.raises(openai.APITimeoutError):
            client.chat.completions.create(**HAND, timeout=0.2)
        wait_until(lambda: server.server.running.assembled.backend.admitted == 0)
        gate.open_all()
        assert client.chat.completions.create(**HAND).choices[0].message.content == "bcd"
        statistics = server.server.running.assembled.backend.statistics()
    assert (statistics.finished_aborted_total, statistics.finished_length_total) == (1, 1)


def test_the_client_reads_through_pings():
    gate, loaded = gated_succ()
    body = {**HAND, "max_tokens": 30, "stream": True}
    settings = {"http.ping_interval_ms": 5}
    with (
        serve_in_thread("succ", loaded=loaded, settings=settings) as server,
        ThreadPoolExecutor(2) as threads,
        client_of(server) as client,
    ):
        read = threads.submit(
            lambda: [chunk.choices[0].delta.content for chunk in client.chat.completions.create(**body)]
        )
        pinged = threads.submit(read_pings, server.address, body, 5)
        backend = server.server.running.assembled.backend
        wait_until(lambda: backend.admitted == 2)
        while backend.statistics().active_sequences < 2:
            gate.wait_for_step()
            gate.open_one()
        pinged.result()  # a step waits, and both streams get pings
        gate.open_all()
        assert "".join(read.result()) == "bcdefghijklmnopqrstuvwxyz{|}~\x7f"


def read_pings(address, body, count):
    """Read a stream up to its ping number `count`."""
    with opened(address, "POST", "/v1/chat/completions", body) as response:
        while count:
            line = response.readline()
            assert line, "the stream ended before its pings came"
            count -= line == b": ping\n"
