"""Streams of the whole server in cases where other servers have failed: stops, split characters, refusals, pings."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import trio

from tests.kit.http.gated_server import CHAT, gated_server, until
from tests.kit.http.http_calls import chat, content_of, post
from tests.kit.model.tiny_models import write_tiny_gguf
from tlserve.model.load import load_model
from tlserve.testing import serve_in_thread


def both(address, body):
    """Return (content, finish_reason) of the whole answer, after comparing it with the streamed one."""
    whole = post(address, CHAT, body).json["choices"][0]
    events = post(address, CHAT, {**body, "stream": True}).events
    assert content_of(events) == whole["message"]["content"]
    assert events[-2]["choices"][0]["finish_reason"] == whole["finish_reason"]
    return whole["message"]["content"], whole["finish_reason"]


@pytest.fixture(scope="module")
def tiny_server(tmp_path_factory):
    path = write_tiny_gguf(tmp_path_factory.mktemp("streams") / "tiny.gguf")
    with serve_in_thread("tiny", loaded=load_model(path)) as server:
        yield server


@pytest.mark.spec("CASE-1")
def test_a_stop_string_from_the_answer_ends_it_before_its_first_occurrence(tiny_server):
    body = chat("Hello", model="tiny", max_tokens=40)
    content, _ = both(tiny_server.address, body)
    slices = [content[begin : begin + 8] for begin in range(0, len(content) - 8, 13)]
    slices += [content[begin : begin + 4] + content[begin : begin + 3] for begin in range(0, 20, 5)]
    for stop in slices:
        expected = (content[: content.find(stop)], "stop") if stop in content else (content, "length")
        assert both(tiny_server.address, {**body, "stop": [stop]}) == expected


@pytest.mark.spec("CASE-6")
def test_the_finish_says_why_the_answer_ended():
    with serve_in_thread("succ") as server:
        assert both(server.address, chat("a", max_tokens=1)) == ("b", "length")
        assert both(server.address, chat("a", max_tokens=3, stop=["d"])) == ("bc", "stop")
        assert both(server.address, chat("a", max_tokens=3, stop=["cd"])) == ("b", "stop")
        assert both(server.address, chat("a", max_tokens=3, stop=["e"])) == ("bcd", "length")


@pytest.mark.spec("CASE-8")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"messages": [{"role": "user", "content": "x" * 5000}]}, 400, "context_length_exceeded"),
        ({"max_tokens": 5000}, 400, "context_length_exceeded"),
        ({"model": "nobody"}, 404, "model_not_found"),
        ({"messages": "hi"}, 400, None),
        ({"temperature": 3}, 400, None),
    ],
)
async def test_a_bad_request_is_refused_before_a_stream_begins(stream, fields, status, code):
    async with gated_server() as host:
        answer = await (await host.send({**chat("a"), **fields, "stream": stream})).answer()
        assert (answer.status, answer.headers.get("content-type")) == (status, "application/json")
        assert json.loads(answer.body)["error"]["code"] == code
        assert host.gate.steps == 0


@pytest.mark.spec("CASE-9")
async def test_a_ping_is_only_a_comment_between_events():
    async with gated_server(http__ping_interval_ms=10) as host:
        talk = await host.send(chat("a", max_tokens=3, stream=True))
        await host.step()
        await until(lambda: talk.seen.count(b": ping\n\n") >= 3)
        await host.step()
        await until(lambda: talk.seen.endswith(b": ping\n\n: ping\n\n"))
        host.gate.open_all()
        assert content_of(await talk.events()) == "bcd"
        lines = {line[:5] for line in talk.seen.split(b"\n")}
        assert lines == {b"data:", b": pin", b""}


async def test_no_ping_is_sent_while_a_request_waits_so_that_it_can_still_be_refused():
    async with gated_server(max_num_seqs=1, queue_deadline_ms=100, http__ping_interval_ms=5) as host:
        await host.send(chat("a", max_tokens=3))
        await host.step()
        waiting = await host.send(chat("a", max_tokens=3, stream=True))
        assert (await waiting.answer()).status == 503
        host.gate.open_all()


@pytest.mark.spec("CASE-3")
@pytest.mark.real_model
def test_a_limit_inside_a_character_gives_the_same_valid_text_streamed_and_whole(smol_path):
    """Raw text that the model repeats, cut at every token: the tail of an incomplete character."""
    prompt = "👩‍👩‍👧 漢字 é 👩‍👩‍👧 漢字 é 👩‍👩‍👧 漢字 é 👩‍👩‍👧"
    with serve_in_thread(smol_path) as server, ThreadPoolExecutor(16) as threads:

        def ask(limit, stream):
            body = {"model": "smol-135m", "prompt": prompt, "temperature": 0, "max_tokens": limit, "stream": stream}
            reply = post(server.address, "/v1/completions", body)
            if not stream:
                return reply.json["choices"][0]["text"]
            return "".join(event["choices"][0]["text"] for event in reply.events[:-1])

        limits = range(1, 9)
        wholes = list(threads.map(lambda limit: ask(limit, False), limits))
        streams = list(threads.map(lambda limit: ask(limit, True), limits))
    assert streams == wholes
    assert all(longer.startswith(text.rstrip("\ufffd")) for text in wholes for longer in wholes[wholes.index(text) :])
    assert all("\ufffd" not in text.rstrip("\ufffd") for text in wholes)
    assert any("漢" in text for text in wholes)


@pytest.mark.spec("FAULT-4")
async def test_the_head_is_sent_when_the_prefill_begins_not_when_the_step_ends():
    async with gated_server(max_num_seqs=1) as host:
        running = await host.send(chat("a", max_tokens=3, stream=True))
        await host.wait_step()
        await until(lambda: running.seen)
        assert (running.status, host.statistics.active_sequences, host.statistics.generated_tokens_total) == (200, 1, 0)
        queued = await host.send(chat("d", max_tokens=3, stream=True))
        await host.pass_step()
        await host.wait_step()
        assert queued.status is None
        host.gate.open_all()
        assert [content_of(await talk.events()) for talk in (running, queued)] == ["bcd", "efg"]


@pytest.mark.spec("FAULT-14")
async def test_a_long_first_step_does_not_count_as_time_in_the_queue(caplog):
    caplog.set_level("INFO", "tlserve.request")
    async with gated_server(queue_deadline_ms=300) as host:
        talk = await host.send(chat("a", max_tokens=3))
        await host.wait_step()
        late = trio.current_time() + 0.35
        await until(lambda: trio.current_time() > late)
        host.gate.open_all()
        assert (await talk.document())["choices"][0]["message"]["content"] == "bcd"
    (line,) = [record.message for record in caplog.records]
    times = {name: float(value) for name, value in re.findall(r"(\w+_ms)=([0-9.]+)", line)}
    assert times["queue_ms"] < 300
    assert times["first_token_ms"] > 350
