"""The HTTP link to a node, over memory streams, in virtual time: its messages, its connections, and how a loss is noticed."""

import attrs
import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.kit.fleet.http_node import URL, http_node
from tests.kit.fleet.mini_head import ended, follow, fresh_key, poll_once, read_on
from tests.kit.scripted_backend import Script
from tlserve.errors import NoCapacity, Overloaded
from tlserve.fleet import wire
from tlserve.fleet.http.link import HttpLink
from tlserve.fleet.link import Ack, NodeLost, StalePlacement
from tlserve.fleet.remote_node import CALLS, CallTimes
from tlserve.generation import EmbeddingRequest, GenerationRequest, TokenEvent

REQUEST = GenerationRequest(prompt=(97,), max_tokens=4, seed=0, logprobs=2)
LONG = attrs.evolve(REQUEST, max_tokens=100)
KEY = "only-for-this-fleet-7"
WALL_S = 600.0


# --- messages -----------------------------------------------------------------------------------------------------


@pytest.mark.spec("LINK-1")
async def test_a_session_over_http_equals_the_one_in_process(autojump_clock):
    async with http_node() as at:
        assert await follow(at.link(), REQUEST) == await follow(at.service, REQUEST)


async def test_the_description_of_a_node_and_its_vectors_are_transmitted(autojump_clock):
    async with http_node() as at:
        link, asked = at.link(), EmbeddingRequest(inputs=((1, 2), (3,)))
        assert await link.hello() == await at.service.hello()
        for ours, theirs in zip(await link.embed(asked), await at.service.embed(asked), strict=True):
            assert np.array_equal(ours, theirs)


async def test_errors_keep_their_class(autojump_clock):
    async with http_node(Script(refusal=Overloaded("full", retry_after_s=7))) as at:
        with pytest.raises(Overloaded, match="full") as caught:
            await at.link().place(fresh_key(), REQUEST, WALL_S)
        assert caught.value.retry_after_s == 7
    async with http_node(Script(failure=NoCapacity("no room"), fail_before=2)) as at:
        with pytest.raises(NoCapacity, match="no room"):
            await follow(at.link(), REQUEST)


async def test_a_refused_placement_does_not_mean_that_the_node_is_lost(autojump_clock):
    async with http_node() as at:
        link, at_key = at.link(), fresh_key()
        await link.cancel([at_key])
        with pytest.raises(StalePlacement):
            await link.place(at_key, REQUEST, WALL_S)
        assert not link.is_lost


async def test_a_drain_is_transmitted(autojump_clock):
    async with http_node() as at:
        await at.link().drain()
        assert (await at.link().hello()).draining


# --- connections ------------------------------------------------------------------------------------------------------


@pytest.mark.spec("LINK-2")
async def test_connections_are_kept_and_a_waiting_poll_has_its_own(autojump_clock):
    async with http_node(Script(queue_s=3)) as at, trio.open_nursery() as nursery:
        link = at.link()
        nursery.start_soon(link.poll, "head", [], 5)
        await wait_all_tasks_blocked()
        for _ in range(5):
            await link.hello()
        at_key = fresh_key()
        await link.place(at_key, REQUEST, WALL_S)
        assert trio.current_time() == 0
        assert len(await read_on(link, at_key, [])) == 5
        assert at.opened == 2
        await link.aclose()
        await wait_all_tasks_blocked()
        assert at.server.server.open_connections == 0


async def test_an_abandoned_poll_loses_nothing_and_its_connection_is_not_used_again(autojump_clock):
    async with http_node(Script(token_s=1)) as at:
        link, at_key, events = at.link(), fresh_key(), []
        await link.place(at_key, LONG, WALL_S)
        while not ended(events):
            with trio.move_on_after(0.3):
                more, _ = await poll_once(link, at_key, len(events), wait_s=5)
                events += more
        assert [event.index for event in events if isinstance(event, TokenEvent)] == list(range(100))
        assert at.opened > 100
        await wait_all_tasks_blocked()
        assert at.server.server.open_connections == 1


@pytest.mark.spec("LINK-2")
async def test_a_connection_that_the_server_closed_meanwhile_is_replaced(autojump_clock):
    async with http_node(idle_timeout_ms=1000) as at:
        link = at.link()
        await link.hello()
        await trio.sleep(5)
        await link.hello()
        assert at.opened == 2
        assert not link.is_lost


@pytest.mark.spec("LINK-2")
async def test_a_connection_cut_during_a_poll_costs_nothing_if_the_node_lives(autojump_clock):
    async with http_node(Script(queue_s=3)) as at, trio.open_nursery() as nursery:
        link, at_key, got = at.link(), fresh_key(), []
        await link.place(at_key, REQUEST, WALL_S)

        async def read():
            got.extend(await read_on(link, at_key, []))

        nursery.start_soon(read)
        await wait_all_tasks_blocked()
        await at.cut_connections()
        await trio.sleep(4)
        assert len(got) == 5


# --- a loss -----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("LINK-3")
async def test_a_node_that_dies_under_a_poll_is_lost_at_once(autojump_clock):
    async with http_node() as at, trio.open_nursery() as nursery:
        link, lost = at.link(), []
        await link.hello()

        async def poll():
            with pytest.raises(NodeLost, match="cannot be reached"):
                await link.poll("head", [], 5)
            lost.append(trio.current_time())

        nursery.start_soon(poll)
        await trio.sleep(1)
        at.listens = False
        await at.cut_connections()
        await wait_all_tasks_blocked()
        assert lost == [1.0]
        assert link.is_lost


async def test_a_node_that_is_back_is_reached_again(autojump_clock):
    async with http_node() as at:
        link = at.link()
        at.listens = False
        with pytest.raises(NodeLost):
            await link.hello()
        at.listens = True
        await link.hello()
        assert not link.is_lost


@pytest.mark.spec("LINK-3")
@pytest.mark.parametrize(
    ("call", "within_s"),
    [
        (lambda link: link.poll("head", [], 0.5), 1.5),
        (lambda link: link.hello(), 2),
        (lambda link: link.place(fresh_key(), REQUEST, WALL_S), 3),
        (lambda link: link.cancel([fresh_key()]), 4),
        (lambda link: link.embed(EmbeddingRequest(inputs=((1,),))), 5),
        (lambda link: link.drain(), 6),
    ],
    ids=["poll", "hello", "place", "cancel", "embed", "drain"],
)
async def test_a_silent_peer_is_lost_at_the_deadline_of_the_call(autojump_clock, call, within_s):
    times = CallTimes(poll_margin_s=1, hello_s=2, place_s=3, cancel_s=4, embed_s=5, drain_s=6)
    async with http_node() as at:
        at.answers = False
        link = at.link(times=times)
        with pytest.raises(NodeLost, match="did not answer"):
            await call(link)
        assert trio.current_time() == within_s
        assert link.is_lost


@pytest.mark.parametrize(("after_s", "is_lost"), [(0.5, False), (1.2, True)])
async def test_an_abandoned_call_means_a_loss_once_its_answer_was_due(autojump_clock, after_s, is_lost):
    async with http_node() as at:
        at.answers = False
        link = at.link()
        with trio.move_on_after(after_s):
            await link.poll("head", [], 1)
        assert link.is_lost == is_lost


async def say_nothing(*_):
    await trio.sleep_forever()


@pytest.mark.spec("LINK-3")
async def test_a_peer_that_falls_silent_on_a_kept_connection_is_lost_at_the_deadline(autojump_clock):
    async with http_node() as at:
        link = at.link()
        await link.poll("head", [], 0)
        at.service.poll = at.service.hello = say_nothing  # type: ignore[method-assign]
        began = trio.current_time()
        with pytest.raises(NodeLost):
            await link.poll("head", [], 0.5)
        assert trio.current_time() - began == pytest.approx(1.5)


@pytest.mark.spec("LINK-4")
@pytest.mark.parametrize(
    "said", [b"", b"220 mail.example ESMTP\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"]
)
async def test_a_peer_that_speaks_something_else_is_lost(autojump_clock, said):
    async def open_stream():
        ours, theirs = trio.testing.memory_stream_pair()
        await theirs.send_all(said)
        await theirs.send_eof()
        return ours

    with pytest.raises(NodeLost):
        await HttpLink(URL, open_stream=open_stream).hello()


# --- the routes -------------------------------------------------------------------------------------------------------


@pytest.mark.spec("LINK-5", "LINK-7")
async def test_no_call_is_answered_without_the_key(autojump_clock, caplog):
    async with http_node(key=KEY) as at:
        await at.link(KEY).hello()
        for wrong in ("", "another-key-of-no-use"):
            with pytest.raises(NodeLost, match=r"401.*fleet\.internal_key"):
                await at.link(wrong).hello()
        for path in (*CALLS, "", "nothing", "hello/more"):
            answer = await at.server.request("POST", f"/v1/internal/{path}")
            assert answer.status == 401
    assert KEY not in caplog.text


@pytest.mark.spec("LINK-7")
async def test_no_message_of_a_link_contains_the_key(autojump_clock):
    async with http_node(key="another-key-of-no-use") as at:
        link = at.link(KEY)
        with pytest.raises(NodeLost) as caught:
            await link.hello()
        assert KEY not in f"{caught.value!r} {link!r} {caught.value.__cause__!r} {caught.value.__context__!r}"


@pytest.mark.spec("LINK-9")
@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/v1/internal/hello", b"", 405),
        ("POST", "/v1/internal/nothing", b"", 404),
        ("POST", "/v1/internal/hello/", b"", 404),
        ("POST", "/v1/internal", b"", 404),
        ("POST", "/v1/internal/hello", b"", 400),
        ("POST", "/v1/internal/poll", b"\x01\xc0", 400),
        ("POST", "/v1/internal/poll", b"x" * 20_000, 413),
        ("POST", "/v1/internals", b"", 200),
        ("GET", "/v1/models", b"", 200),
    ],
)
async def test_an_invalid_call_is_refused_and_other_paths_belong_to_the_api(autojump_clock, method, path, body, status):
    async with http_node(max_body_bytes=10_000) as at:
        assert (await at.server.request(method, path, (), body)).status == status


@pytest.mark.spec("WIRE-4")
async def test_a_head_of_another_version_gets_a_clear_refusal(autojump_clock, monkeypatch):
    async with http_node() as at:
        link = at.link()
        written = wire.write
        monkeypatch.setattr(wire, "write", lambda message: b"\x09" + written(message)[1:])
        with pytest.raises(NodeLost, match="400, the other side uses wire format 9"):
            await link.hello()


async def test_acknowledgements_of_a_hundred_sessions_fit_one_poll(autojump_clock):
    async with http_node() as at:
        acks = [Ack(fresh_key(), 0, 64) for _ in range(100)]
        reply = await at.link().poll("head", acks, 5)
        assert reply.unknown == tuple(ack.key for ack in acks)
