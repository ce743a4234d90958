"""The node's side of a fleet, over a scripted backend, in virtual time."""

import itertools
import math
from contextlib import asynccontextmanager

import attrs
import numpy as np
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.kit.fleet.mini_head import ended, follow, fresh_key, key, poll_once, read_on
from tests.kit.scripted_backend import INFO, Script, ScriptedBackend
from tlserve.errors import (
    ClientError,
    ContextLengthExceeded,
    DeadlineExceeded,
    Draining,
    EngineFailed,
    NoCapacity,
    Overloaded,
)
from tlserve.fleet.link import WINDOW, Ack, StalePlacement
from tlserve.fleet.node.service import LAST_POLLS_S, NodeLimits, NodeService
from tlserve.generation import EmbeddingRequest, Finish, GenerationRequest, PrefillStarted, TokenEvent

REQUEST = GenerationRequest(prompt=(97,), max_tokens=4, seed=0)
LONG = attrs.evolve(REQUEST, max_tokens=1000)
WALL_S = 600.0
AT_ONCE = Script()


def make(script=AT_ONCE, **limits) -> tuple[ScriptedBackend, NodeService]:
    backend = ScriptedBackend(script, attrs.evolve(INFO, context_tokens=2000))
    return backend, NodeService(backend, node="n", slots=2, limits=NodeLimits(**limits))


@asynccontextmanager
async def running(script=AT_ONCE, **limits):
    backend, node = make(script, **limits)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        yield backend, node
        nursery.cancel_scope.cancel()


def tokens(events):
    return [event.token for event in events if isinstance(event, TokenEvent)]


# --- a session --------------------------------------------------------------------------------------------------------


@pytest.mark.spec("NODE-1")
async def test_a_session_has_the_events_of_the_backend(autojump_clock):
    async with running() as (_, node):
        first, *rest = await follow(node, REQUEST)
        assert isinstance(first, PrefillStarted)
        assert tokens(rest) == [98, 99, 100, 101]
        assert [event.finish for event in rest] == [None, None, None, Finish.LENGTH]
        assert node.open_sessions == 0


@pytest.mark.spec("NODE-3")
async def test_placing_a_key_again_changes_nothing(autojump_clock):
    async with running(Script(token_s=1)) as (backend, node):
        await node.place(key(), REQUEST, WALL_S)
        await trio.sleep(2)
        await node.place(key(), REQUEST, WALL_S)
        assert len(await read_on(node, key(), [])) == 5
        assert len(backend.requests) == 1


@pytest.mark.spec("NODE-3", "NODE-18")
async def test_an_older_epoch_is_refused_and_a_newer_one_ends_the_older(autojump_clock):
    async with running(Script(token_s=1)) as (backend, node):
        await node.place(key(epoch=1), REQUEST, WALL_S)
        with pytest.raises(StalePlacement):
            await node.place(key(epoch=0), REQUEST, WALL_S)
        await node.place(key(epoch=2), attrs.evolve(REQUEST, prompt=(10,)), WALL_S)
        assert tokens(await read_on(node, key(epoch=2), [])) == [11, 12, 13, 14]
        assert (backend.counts.aborted, backend.counts.finished) == (1, 1)


@pytest.mark.spec("NODE-8")
async def test_an_older_placement_is_unknown_once_a_newer_one_is_there(autojump_clock):
    async with running(Script(token_s=1)) as (_, node):
        await node.place(key(epoch=0), REQUEST, WALL_S)
        await node.place(key(epoch=1), REQUEST, WALL_S)
        reply = await node.poll("head", [Ack(key(epoch=0), 0, WINDOW)], 1)
        assert reply.unknown == (key(epoch=0),)


@pytest.mark.spec("NODE-18")
async def test_a_placement_that_has_ended_is_not_started_again(autojump_clock):
    async with running() as (backend, node):
        await follow(node, REQUEST, key())
        with pytest.raises(StalePlacement):
            await node.place(key(), REQUEST, WALL_S)
        assert len(backend.requests) == 1


@pytest.mark.spec("NODE-2")
@pytest.mark.parametrize(
    "error",
    [Overloaded("full", retry_after_s=7), ContextLengthExceeded("long", param="messages"), Draining("going")],
    ids=lambda error: type(error).__name__,
)
async def test_a_refusal_of_the_backend_comes_out_of_the_placement_unchanged(error, autojump_clock):
    async with running(Script(refusal=error)) as (_, node):
        with pytest.raises(type(error)) as caught:
            await node.place(key(), REQUEST, WALL_S)
        assert caught.value is error
        assert node.open_sessions == 0


@pytest.mark.spec("NODE-23")
async def test_a_key_that_was_refused_can_be_used_again(autojump_clock):
    scripts = [Script(refusal=Overloaded("full")), Script()]
    async with running(lambda _: scripts.pop(0)) as (_, node):
        with pytest.raises(Overloaded):
            await node.place(key(), REQUEST, WALL_S)
        assert len(await follow(node, REQUEST, key())) == 5


@pytest.mark.spec("NODE-14")
@pytest.mark.parametrize("request_", [{"prompt": (256,)}, {"prompt": (-1,)}, {"emitted": (7, 1000)}], ids=str)
async def test_an_id_that_the_model_does_not_have_is_refused(request_, autojump_clock):
    async with running() as (backend, node):
        with pytest.raises(ClientError, match="token id"):
            await node.place(key(), attrs.evolve(REQUEST, **request_), WALL_S)
        assert backend.requests == []


async def test_a_node_that_does_not_run_places_nothing(autojump_clock):
    _, node = make()
    with pytest.raises(NoCapacity):
        await node.place(key(), REQUEST, WALL_S)


@pytest.mark.spec("NODE-15")
async def test_a_finished_answer_leaves_the_backend_before_it_is_read(autojump_clock):
    async with running() as (backend, node):
        await node.place(key(), REQUEST, WALL_S)
        await wait_all_tasks_blocked()
        assert (backend.counts.open, backend.counts.finished, node.open_sessions) == (0, 1, 1)


# --- how it ends otherwise --------------------------------------------------------------------------------------------


@pytest.mark.spec("NODE-9")
async def test_an_error_comes_after_the_events_before_it_and_counts_as_one(autojump_clock):
    async with running(Script(failure=NoCapacity("no room"), fail_before=2)) as (_, node):
        await node.place(key(), REQUEST, WALL_S)
        await wait_all_tasks_blocked()
        events, error = await poll_once(node, key(), 0)
        assert (len(events), type(error)) == (3, NoCapacity)
        again, error = await poll_once(node, key(), 3)
        assert (again, type(error)) == ([], NoCapacity)
        reply = await node.poll("head", [Ack(key(), 4, 4)], 0)
        assert (reply.sessions, reply.unknown, node.open_sessions) == ((), (), 0)


@pytest.mark.spec("NODE-9")
async def test_a_backend_that_fails_ends_its_session_only(caplog, autojump_clock):
    scripts = [Script(failure=ZeroDivisionError("odd"), fail_before=1), Script()]
    async with running(lambda _: scripts.pop(0)) as (_, node):
        with pytest.raises(EngineFailed, match="ZeroDivisionError"):
            await follow(node, REQUEST)
        assert len(await follow(node, REQUEST)) == 5
    assert "odd" in caplog.text


@pytest.mark.spec("NODE-20")
async def test_an_answer_that_ends_without_a_reason_is_an_error(autojump_clock):
    class Silent(ScriptedBackend):
        @asynccontextmanager
        async def generate(self, request):
            async def none():
                if False:
                    yield ()

            yield none()

    node = NodeService(Silent(), node="n", slots=1)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        with pytest.raises(EngineFailed, match="without a reason"):
            await follow(node, REQUEST)
        nursery.cancel_scope.cancel()


@pytest.mark.spec("NODE-11")
async def test_the_wall_limit_ends_a_session_after_its_events(autojump_clock):
    async with running(Script(token_s=1)) as (backend, node):
        with pytest.raises(DeadlineExceeded):
            await follow(node, LONG, wall_s=3.5)
        assert trio.current_time() == pytest.approx(3.5, abs=0.1)
        assert backend.counts.aborted == 1


@pytest.mark.spec("NODE-11")
async def test_with_a_wall_limit_of_zero_there_is_no_answer(autojump_clock):
    async with running(Script(queue_s=1)) as (_, node):
        for wall_s in (0.0, -1.0, math.nan):
            with pytest.raises(DeadlineExceeded):
                await follow(node, REQUEST, wall_s=wall_s)


@pytest.mark.spec("NODE-12")
async def test_a_cancel_ends_a_session_at_once_and_unknown_keys_do_no_harm(autojump_clock):
    async with running(Script(token_s=1)) as (backend, node):
        await node.place(key(), LONG, WALL_S)
        await node.cancel([key(), key(7)])
        await wait_all_tasks_blocked()
        assert (backend.counts.aborted, node.open_sessions) == (1, 0)


@pytest.mark.spec("NODE-12")
async def test_a_cancel_that_arrives_before_its_placement_is_effective(autojump_clock):
    async with running() as (backend, node):
        await node.cancel([key(epoch=3)])
        with pytest.raises(StalePlacement):
            await node.place(key(epoch=3), REQUEST, WALL_S)
        await node.place(key(epoch=4), REQUEST, WALL_S)
        assert len(backend.requests) == 1


@pytest.mark.spec("NODE-12")
async def test_a_cancel_of_an_older_placement_leaves_the_newer_one(autojump_clock):
    async with running(Script(token_s=1)) as (_, node):
        await node.place(key(epoch=1), REQUEST, WALL_S)
        await node.cancel([key(epoch=0)])
        assert len(await read_on(node, key(epoch=1), [])) == 5


# --- polls ------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("NODE-4")
async def test_a_poll_waits_for_the_first_event_and_no_longer(autojump_clock):
    async with running(Script(queue_s=0.7)) as (_, node):
        await node.place(key(), REQUEST, WALL_S)
        events, _ = await poll_once(node, key(), 0, wait_s=5)
        assert isinstance(events[0], PrefillStarted)
        assert trio.current_time() == pytest.approx(0.7, abs=0.01)


@pytest.mark.spec("NODE-4", "NODE-22")
@pytest.mark.parametrize(("wait_s", "waited_s"), [(1.5, 1.5), (0.0, 0.0), (-1.0, 0.0), (math.nan, 0.0), (1e9, 5.0)])
async def test_a_poll_without_events_returns_in_time(wait_s, waited_s, autojump_clock):
    async with running(longest_poll_s=5.0) as (_, node):
        began = trio.current_time()
        reply = await node.poll("head", [], wait_s)
        assert (reply.sessions, reply.unknown) == ((), ())
        assert trio.current_time() - began == pytest.approx(waited_s)


@pytest.mark.spec("NODE-5")
async def test_one_reply_has_the_events_of_one_step_for_all_sessions_of_the_head(autojump_clock):
    async with running(Script(token_s=1.0)) as (_, node):
        keys = [key(session) for session in range(20)]
        for each in keys:
            await node.place(each, LONG, WALL_S)
        await wait_all_tasks_blocked()
        replies = []
        for step in range(1, 5):
            have = 0 if step == 1 else step
            replies.append(await node.poll("head", [Ack(each, have, have + WINDOW) for each in keys], 5))
        assert [len(reply.sessions) for reply in replies] == [20] * 4
        assert [{len(each.events) for each in reply.sessions} for reply in replies[1:]] == [{1}] * 3


@pytest.mark.spec("NODE-17")
async def test_quick_tokens_come_together_and_the_first_and_the_last_do_not_wait(autojump_clock):
    async with running(Script(token_s=0.004), pace_s=0.016) as (_, node):
        began, got, times = trio.current_time(), [], []
        await node.place(key(), attrs.evolve(REQUEST, max_tokens=12), WALL_S)
        while not ended(got):
            update, _ = await poll_once(node, key(), len(got))
            got += update
            times.append((round(trio.current_time() - began, 3), len([e for e in update if isinstance(e, TokenEvent)])))
        counts = [(at, count) for at, count in times if count]
        assert counts[0][1] == 1, "the first token goes out by itself"
        gaps = [round(later - earlier, 3) for (earlier, _), (later, _) in itertools.pairwise(counts[:-1])]
        assert all(gap >= 0.016 for gap in gaps)
        assert all(3 <= count <= 5 for _, count in counts[1:-1])
        assert counts[-1][0] == pytest.approx(counts[0][0] + 11 * 0.004), "the end goes out when it is there"


@pytest.mark.spec("NODE-4")
async def test_a_session_placed_during_a_waiting_poll_ends_the_wait(autojump_clock):
    async with running() as (_, node), trio.open_nursery() as nursery:
        replies = []

        async def poll():
            replies.append(await node.poll("head", [], 60))

        nursery.start_soon(poll)
        await wait_all_tasks_blocked()
        await node.place(key(), REQUEST, WALL_S)
        await wait_all_tasks_blocked()
        assert [session.key for session in replies[0].sessions] == [key()]


@pytest.mark.spec("NODE-6")
async def test_events_that_are_not_acknowledged_are_sent_again(autojump_clock):
    async with running() as (_, node):
        await node.place(key(), REQUEST, WALL_S)
        await wait_all_tasks_blocked()
        first = await poll_once(node, key(), 0)
        assert await poll_once(node, key(), 0) == first
        assert (await poll_once(node, key(), 2))[0] == first[0][2:]


@pytest.mark.spec("NODE-6")
async def test_abandoned_polls_lose_nothing(autojump_clock):
    async with running(Script(token_s=1)) as (_, node):
        await node.place(key(), attrs.evolve(REQUEST, max_tokens=30), WALL_S)
        events = []
        while not ended(events):
            with trio.move_on_after(0.3):
                more, _ = await poll_once(node, key(), len(events), wait_s=5)
                events += more
        assert [event.index for event in events[1:]] == list(range(30))


@pytest.mark.spec("NODE-6")
async def test_two_polls_at_once_get_the_same(autojump_clock):
    async with running(Script(queue_s=1)) as (_, node):
        await node.place(key(), REQUEST, WALL_S)
        replies = []

        async def poll():
            replies.append(await poll_once(node, key(), 0, wait_s=5))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            nursery.start_soon(poll)
        (one, _), (other, _) = replies
        common = min(len(one), len(other))
        assert one[:common] == other[:common] != []


@pytest.mark.spec("NODE-8")
async def test_more_events_than_were_sent_cannot_be_acknowledged(autojump_clock):
    async with running() as (_, node):
        await node.place(key(), REQUEST, WALL_S)
        await wait_all_tasks_blocked()
        reply = await node.poll("head", [Ack(key(), 6, 100)], 0)
        assert reply.unknown == (key(),)


@pytest.mark.spec("NODE-16")
async def test_two_heads_do_not_see_each_other(autojump_clock):
    async with running() as (_, node):
        one, other = key(head="one"), key(head="other")
        for each in (one, other):
            await node.place(each, REQUEST, WALL_S)
        await wait_all_tasks_blocked()
        for each in (one, other):
            reply = await node.poll(each.head, [], 0)
            assert [session.key for session in reply.sessions] == [each]
        await node.cancel([one])
        assert len(await read_on(node, other, [])) == 5


# --- the window ---------------------------------------------------------------------------------------------------------


@pytest.mark.spec("NODE-7")
async def test_a_session_that_is_not_read_stops_at_its_window_and_others_continue(autojump_clock):
    async with running(Script(token_s=0.01)) as (backend, node):
        slow, fast = key(1), key(2)
        for each in (slow, fast):
            await node.place(each, attrs.evolve(REQUEST, max_tokens=300), WALL_S)
        have = {slow: 0, fast: 0}
        while have[fast] < 301:
            acks = [Ack(slow, have[slow], WINDOW), Ack(fast, have[fast], have[fast] + WINDOW)]
            for session in (await node.poll("head", acks, 1)).sessions:
                have[session.key] += len(session.events)
        assert have[slow] == WINDOW
        assert (backend.counts.open, backend.counts.finished) == (1, 1)


@pytest.mark.spec("NODE-7")
async def test_a_window_that_moves_lets_the_session_continue(autojump_clock):
    async with running() as (_, node):
        await node.place(key(), LONG, WALL_S)
        await wait_all_tasks_blocked()
        events, _ = await poll_once(node, key(), 0)
        assert len(events) == WINDOW
        assert len(await read_on(node, key(), events)) == 1001


@pytest.mark.spec("NODE-7")
async def test_events_that_are_received_but_not_taken_are_not_sent_again(autojump_clock):
    async with running() as (_, node):
        await node.place(key(), LONG, WALL_S)
        await wait_all_tasks_blocked()
        reply = await node.poll("head", [Ack(key(), WINDOW, WINDOW)], 3)
        assert reply.sessions == ()
        assert trio.current_time() == pytest.approx(3)


@pytest.mark.spec("NODE-19")
async def test_a_window_never_moves_back(autojump_clock):
    async with running() as (_, node):
        await node.place(key(), LONG, WALL_S)
        await node.poll("head", [Ack(key(), 0, 200)], 0)
        await wait_all_tasks_blocked()
        reply = await node.poll("head", [Ack(key(), 0, 100)], 0)
        assert len(reply.sessions[0].events) == 200


# --- leases -------------------------------------------------------------------------------------------------------------


@pytest.mark.spec("NODE-10")
async def test_a_session_that_is_not_acknowledged_is_dropped_after_its_lease(autojump_clock):
    async with running(Script(token_s=1), lease_s=10) as (backend, node):
        await node.place(key(1), LONG, WALL_S)
        await trio.sleep(5)
        await node.place(key(2), LONG, WALL_S)
        await trio.sleep(5.5)
        assert node.open_sessions == 1
        assert backend.counts.aborted == 1
        reply = await node.poll("head", [Ack(key(1), 0, WINDOW), Ack(key(2), 0, WINDOW)], 0)
        assert reply.unknown == (key(1),)


@pytest.mark.spec("NODE-10")
async def test_acknowledging_keeps_a_session_without_new_events(autojump_clock):
    async with running(Script(queue_s=100), lease_s=10) as (_, node):
        await node.place(key(), REQUEST, WALL_S)
        assert len(await read_on(node, key(), [])) == 5
        assert trio.current_time() == pytest.approx(100)


@pytest.mark.spec("NODE-10")
async def test_an_answer_that_is_not_fetched_is_forgotten_after_its_lease(autojump_clock):
    async with running(lease_s=10) as (_, node):
        await node.place(key(), REQUEST, WALL_S)
        await trio.sleep(11)
        assert node.open_sessions == 0


@pytest.mark.spec("NODE-10")
async def test_a_session_of_an_abandoned_placement_ends_with_its_lease(autojump_clock):
    class Slow(ScriptedBackend):
        @asynccontextmanager
        async def generate(self, request):
            await trio.sleep(5)
            async with super().generate(request) as stream:
                yield stream

    backend = Slow(Script(token_s=1), attrs.evolve(INFO, context_tokens=2000))
    node = NodeService(backend, node="n", slots=1)
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        with trio.move_on_after(1):
            await node.place(key(), LONG, WALL_S)
        await trio.sleep(5)
        assert (len(backend.requests), node.open_sessions) == (1, 1)
        await trio.sleep(5)
        assert (backend.counts.aborted, node.open_sessions) == (1, 0)
        nursery.cancel_scope.cancel()


# --- the rest -----------------------------------------------------------------------------------------------------------


@pytest.mark.spec("NODE-13")
async def test_a_draining_node_refuses_new_sessions_at_once_and_continues_others(autojump_clock):
    async with running(Script(token_s=1)) as (_, node):
        await node.place(key(), REQUEST, WALL_S)
        await wait_all_tasks_blocked()
        await poll_once(node, key(), 0)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.drain)
            reply = await node.poll("head", [Ack(key(), 2, WINDOW)], 5)
        assert (reply.draining, reply.sessions) == (True, ())
        assert (await node.hello()).draining
        with pytest.raises(Draining):
            await node.place(key(2), REQUEST, WALL_S)
        with pytest.raises(Draining):
            await node.embed(EmbeddingRequest(inputs=((1,),)))
        await node.place(key(), REQUEST, WALL_S)
        assert len(await read_on(node, key(), [PrefillStarted(), TokenEvent(0, 98)])) == 5
        await node.wait_empty()


async def test_a_drained_node_keeps_no_poll_waiting_long(autojump_clock):
    async with running() as (_, node):
        await node.drain()
        began = trio.current_time()
        await node.poll("head", [], 5)
        assert trio.current_time() - began == pytest.approx(LAST_POLLS_S)


async def test_a_node_describes_itself(autojump_clock):
    _, node = make()
    info = await node.hello()
    assert (info.node, info.slots, info.backend.model_id, info.numerics) == ("n", 2, "succ", "fp_scripted")
    assert info.incarnation == node.incarnation
    assert make()[1].incarnation != node.incarnation


async def test_vectors_and_refusals_of_embeddings_come_from_the_backend(autojump_clock):
    async with running() as (backend, node):
        (vector,) = await node.embed(EmbeddingRequest(inputs=((1, 2),)))
        assert np.array_equal(vector, (await backend.embed(EmbeddingRequest(inputs=((1, 2),))))[0])
        with pytest.raises(ClientError):
            await node.embed(EmbeddingRequest(inputs=((1, 256),)))
    async with running(Script(refusal=Overloaded("full"))) as (_, node):
        with pytest.raises(Overloaded):
            await node.embed(EmbeddingRequest(inputs=((1,),)))


async def test_the_end_of_the_service_ends_its_sessions(autojump_clock):
    backend, node = make(Script(token_s=1))
    async with trio.open_nursery() as nursery:
        await nursery.start(node.run)
        await node.place(fresh_key(), LONG, WALL_S)
        nursery.cancel_scope.cancel()
    assert (backend.counts.open, backend.counts.aborted) == (0, 1)
