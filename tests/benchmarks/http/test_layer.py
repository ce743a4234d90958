"""Events without an engine: the stub is a real backend, its answers are real answers, and counting counts them all."""

import json
import sys

import pytest
import trio

from tests.benchmarks.http.event_count import count_events
from tests.benchmarks.http.layer import EventPlan, measure_events, own_command
from tests.benchmarks.http.stub_backend import MODEL_ID, StubBackend
from tests.benchmarks.http.stub_server import make_stub_server
from tlserve.config.addresses import parse_address
from tlserve.errors import OperatorError
from tlserve.generation import Finish, GenerationRequest, PrefillStarted, TokenEvent
from tlserve.http.client.connection import connect
from tlserve.http.sockets.listener import bound_addresses, open_listeners
from tlserve.http.wire import Wire


@pytest.mark.parametrize(("batch", "sizes"), [(1, [1, 1, 1, 1, 1]), (2, [2, 2, 1]), (9, [5])])
async def test_the_stub_gives_every_token_once_in_batches(batch, sizes):
    request = GenerationRequest(prompt=(1,), max_tokens=5, seed=0)
    async with StubBackend(batch).generate(request) as tokens:
        batches = [list(events) async for events in tokens]
    assert batches[0] == [PrefillStarted()]
    assert [len(events) for events in batches[1:]] == sizes
    events = [event for events in batches[1:] for event in events if isinstance(event, TokenEvent)]
    assert [event.index for event in events] == list(range(5))
    assert [event.finish for event in events] == [None] * 4 + [Finish.LENGTH]


async def served(batch, act):
    listeners = await open_listeners("127.0.0.1:0")
    server = make_stub_server(batch)
    async with trio.open_nursery() as nursery:
        await nursery.start(server.serve, listeners)
        try:
            return await act(parse_address(bound_addresses(listeners)[0]))
        finally:
            server.cut()


@pytest.mark.spec("BENCH-31")
@pytest.mark.parametrize("batch", [1, 16])
async def test_the_stub_is_behind_the_whole_api(batch):
    body = {"model": MODEL_ID, "messages": [{"role": "user", "content": "x"}], "max_tokens": 30, "stream": True}

    async def act(address):
        async with await connect(address.host, address.port) as client:
            return await client.request("POST", "/v1/chat/completions", (), json.dumps(body).encode())

    answer = await served(batch, act)
    payloads = [line[6:] for line in answer.body.split(b"\n") if line.startswith(b"data: ")]
    assert payloads[-1] == b"[DONE]"
    chunks = [json.loads(payload) for payload in payloads[:-1]]
    assert len(chunks) == 31, "the role, and an event for each token, however they were written"
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == "abcdefghijklmnopqrstuvwxyzabcd"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


async def test_counting_sees_streams_of_many_clients():
    async def act(address):
        return await trio.to_thread.run_sync(lambda: count_events(address, clients=4, events=8, seconds=0.2))

    rate = await served(1, act)
    assert rate.events > 0
    assert rate.events_per_s == rate.events / rate.seconds


async def test_a_server_that_breaks_off_gives_no_measurement():
    async def act(address):
        return await trio.to_thread.run_sync(lambda: count_events(address, clients=1, events=8, seconds=30))

    async def slam(stream):
        await stream.receive_some(1 << 16)
        await Wire(stream, 1).abort()

    async def slam_at(listeners):
        await trio.serve_listeners(slam, listeners)

    listeners = await open_listeners("127.0.0.1:0")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(slam_at, listeners)
        with pytest.raises(OperatorError, match="broke off a stream"):
            await act(parse_address(bound_addresses(listeners)[0]))
        nursery.cancel_scope.cancel()


def test_servers_are_measured_in_turn_and_end_with_their_input():
    done = []
    plan = EventPlan(clients=2, events=8, seconds=0.1, repeats=2)
    rates = measure_events(plan, {"a": own_command(1), "b": own_command(8)}, lambda: done.append(1))
    assert {name: len(found) for name, found in rates.items()} == {"a": 2, "b": 2}
    assert len(done) == 4


def test_a_command_that_names_no_port_is_refused():
    with pytest.raises(OperatorError, match="its port number"):
        measure_events(EventPlan(repeats=1), {"odd": (sys.executable, "-c", "print('hello')")}, lambda: None)
