"""A fake node fails in the requested ways and in no others."""

from typing import Any

import pytest
import trio
import trio.testing

from tests.kit.engine.hash_backend import answer, events_of, tokens_of
from tests.kit.fleet.fake_node import FakeNode, fake_fleet
from tlserve.fleet.link import Ack, NodeGone, NodeLost, NodeUp, SessionKey, StalePlacement
from tlserve.generation import GenerationRequest

REQUEST = GenerationRequest(prompt=(1, 2, 3), max_tokens=5, seed=0, request_id="r")
KEY = SessionKey("h", 1, 1)


async def started(nursery: trio.Nursery) -> FakeNode:
    node = FakeNode("n")
    await node.start(nursery)
    return node


async def test_a_link_without_faults_carries_everything(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        link = (await started(nursery)).link
        assert (await link.hello()).incarnation == "n.1"
        await link.place(KEY, REQUEST, 10)
        have = 0
        tokens: list[Any] = []
        while len(tokens) < 5:
            reply = await link.poll("h", [Ack(KEY, have, have + 64)] if have else [], 1)
            [update] = reply.sessions
            assert update.start == have
            tokens += tokens_of(update.events)
            have += len(update.events)
        assert tokens == answer(REQUEST)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(("fault", "is_there"), [("lost_request", False), ("lost_reply", True)])
async def test_a_lost_request_starts_nothing_and_a_lost_reply_hides_what_was_started(
    fault: str, is_there: bool, autojump_clock: trio.testing.MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        node = await started(nursery)
        node.faults.place.append(fault)
        with pytest.raises(NodeLost):
            await node.link.place(KEY, REQUEST, 10)
        assert node.sessions == is_there
        await node.link.place(KEY, REQUEST, 10)
        assert node.sessions == 1
        nursery.cancel_scope.cancel()


async def test_polls_are_doubled_lack_events_or_hang_once(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        node = await started(nursery)
        await node.link.place(KEY, REQUEST, 10)
        first = await node.link.poll("h", [], 1)
        node.faults.poll += ["doubled", "gap", "hung"]
        assert await node.link.poll("h", [Ack(KEY, 1, 64)], 1) is first
        assert (await node.link.poll("h", [], 1)).sessions[0].start == 1
        with trio.move_on_after(5) as scope:
            await node.link.poll("h", [], 1)
        assert scope.cancelled_caught
        assert (await node.link.poll("h", [], 1)).sessions[0].start == 0
        nursery.cancel_scope.cancel()


async def test_late_messages_of_old_placements_are_sent_again(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        node = await started(nursery)
        await node.link.place(KEY, REQUEST, 10)
        node.faults.place.append("late")
        await node.link.place(SessionKey("h", 1, 2), REQUEST, 10)
        assert node.sessions == 1
        with pytest.raises(StalePlacement):
            await node.link.place(KEY, REQUEST, 10)
        nursery.cancel_scope.cancel()


async def test_a_killed_node_fails_its_calls_and_returns_as_another_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        node = await started(nursery)
        nursery.start_soon(node.link.place, KEY, REQUEST, 10)
        await trio.sleep(0.001)

        async def kill() -> None:
            await trio.sleep(0.2)
            node.kill()

        nursery.start_soon(kill)
        with pytest.raises(NodeLost, match="broke"):
            await node.link.poll("other", [], 5)
        with pytest.raises(NodeLost, match="nothing listens"):
            await node.link.hello()
        await node.start()
        assert (await node.link.hello()).incarnation == "n.2"
        assert node.sessions == 0
        nursery.cancel_scope.cancel()


async def test_a_frozen_node_answers_when_it_thaws(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        node = await started(nursery)
        node.freeze()
        with trio.move_on_after(100) as scope:
            await node.link.hello()
        assert scope.cancelled_caught
        node.thaw()
        await node.link.hello()
        nursery.cancel_scope.cancel()


async def test_a_directory_reports_nodes_and_changes_to_every_head(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with fake_fleet(1, heads=0) as fleet:
        seen = []

        def note(change: Any) -> None:
            seen.append(type(change))

        async def listen() -> None:
            async for change in fleet.directory.changes():
                note(change)

        fleet.nursery.start_soon(listen)
        await trio.testing.wait_all_tasks_blocked()
        fleet.directory.gone("n0")
        await fleet.add("n1")
        await trio.testing.wait_all_tasks_blocked()
        assert seen == [NodeUp, NodeGone, NodeUp]


async def test_a_fleet_knows_which_node_has_a_request(autojump_clock: trio.testing.MockClock) -> None:
    async with fake_fleet(2) as fleet:
        seen = []
        await events_of(fleet.backend, REQUEST, {2: lambda: seen.append(fleet.node_of("r"))})
        assert seen[0] in fleet.nodes.values()
        assert fleet.node_of("r") is None
        assert fleet.placements_of("r") == 1
