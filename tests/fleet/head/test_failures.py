"""A node that is lost, hangs, stalls, forgets or sends impossible events: the client's stream continues, bit for bit."""

import itertools

import attrs
import pytest
import trio

from tests.kit.engine.hash_backend import answer, events_of, prompt_logprobs, tokens_of
from tests.kit.fleet.fake_node import fake_fleet
from tlserve.errors import DeadlineExceeded, EngineFailed
from tlserve.fleet.head.limits import FleetLimits
from tlserve.fleet.link import NodeLost, NoNode, SessionKey
from tlserve.generation import GenerationRequest, Grammar, PrefillStarted, Progress, PromptLogprobs
from tlserve.sampling_params import SamplingParams
from tlserve.telemetry.fleet_figures import FleetFigures

REQUEST = GenerationRequest(prompt=tuple(range(40)), max_tokens=12, seed=7, logprobs=2, request_id="r")


def holder(fleet):
    node = fleet.node_of("r")
    assert node is not None
    return node


class Moments:
    """Notes the time of a call, and returns the time since then."""

    def __init__(self):
        self.at = None

    def note(self, act):
        def noted():
            self.at = trio.current_time()
            act()

        return noted

    @property
    def ago_s(self):
        return trio.current_time() - self.at


async def read_with_times(backend, request, at):
    """Return the events and the time of each."""
    events, times, waiting = [], [], dict(at)
    async with backend.generate(request) as tokens:
        async for batch in tokens:
            events += batch
            times += [trio.current_time()] * len(batch)
            for count in [count for count in waiting if count <= len(events)]:
                waiting.pop(count)()
    return events, times


def longest_gap(times):
    return max(later - sooner for sooner, later in itertools.pairwise(times))


# --- killed


@pytest.mark.spec("HEAD-3")
async def test_a_node_killed_at_any_token_changes_no_token_and_no_bit(autojump_clock):
    truth = answer(REQUEST)
    for count in range(len(truth) + 1):
        async with fake_fleet(3) as fleet:
            events = await events_of(fleet.backend, REQUEST, {count: lambda fleet=fleet: holder(fleet).kill()})
            assert tokens_of(events) == truth, f"killed after {count} events"
            assert events.count(PrefillStarted(0)) == 1
            assert fleet.placements_of("r") == 2


@pytest.mark.spec("HEAD-25")
async def test_losses_and_moves_are_counted_and_nodes_by_state(autojump_clock):
    async with fake_fleet(3) as fleet:
        assert fleet.backend.figures() == FleetFigures(nodes_ready=3)
        await read_with_times(fleet.backend, REQUEST, {4: lambda: holder(fleet).kill()})
        assert fleet.backend.figures() == FleetFigures(nodes_ready=2, nodes_away=1, losses_total=1, moves_total=1)


@pytest.mark.spec("HEAD-27")
async def test_penalties_grammar_bias_and_stops_go_to_the_next_node(autojump_clock):
    truth = answer(REQUEST)
    rich = attrs.evolve(
        REQUEST,
        sampling=SamplingParams(
            repetition_penalty=1.1,
            presence_penalty=0.5,
            frequency_penalty=-0.5,
            logit_bias=((3, 1.5),),
            temperature=0.7,
        ),
        stop_ids=frozenset({truth[8].token}),
        min_tokens=3,
        grammar=Grammar("a"),
        choice=2,
    )
    async with fake_fleet(2) as fleet:
        assert tokens_of(await events_of(fleet.backend, rich, {3: lambda: holder(fleet).kill()})) == answer(rich)
        first, second = (node.requests[0] for node in fleet.nodes.values())
        assert {first.emitted, second.emitted} == {(), tuple(event.token for event in answer(rich)[:2])}
        assert attrs.evolve(first, emitted=()) == attrs.evolve(second, emitted=())


@pytest.mark.spec("HEAD-27")
async def test_an_answer_without_stop_ids_reaches_its_length_after_a_move(autojump_clock):
    async with fake_fleet(2) as fleet:
        events = await events_of(fleet.backend, REQUEST, {5: lambda: holder(fleet).kill()})
        assert len(tokens_of(events)) == REQUEST.max_tokens


@pytest.mark.spec("HEAD-7")
async def test_after_a_kill_the_next_token_comes_within_a_tenth_of_a_second(autojump_clock):
    async with fake_fleet(2) as fleet:
        _, times = await read_with_times(fleet.backend, REQUEST, {5: lambda: holder(fleet).kill()})
        assert longest_gap(times) < 0.1


@pytest.mark.spec("HEAD-4")
async def test_a_node_killed_before_the_first_token_is_replaced_once(autojump_clock):
    slow = attrs.evolve(REQUEST, progress=True, prompt_logprobs=1)
    async with fake_fleet(2, prefill_tokens=8, step_s=0.1) as fleet:
        async with trio.open_nursery() as nursery:

            async def kill():
                await trio.sleep(0.35)
                holder(fleet).kill()

            nursery.start_soon(kill)
            events = await events_of(fleet.backend, slow)
        assert tokens_of(events) == answer(slow)
        assert sum(isinstance(event, PrefillStarted) for event in events) == 1
        assert [event for event in events if isinstance(event, PromptLogprobs)] == prompt_logprobs(slow)
        done = [event.done for event in events if isinstance(event, Progress)]
        assert done == sorted(set(done))


@pytest.mark.spec("HEAD-11")
async def test_a_session_survives_failures_up_to_the_limit_then_ends_with_one_error(autojump_clock):
    long = attrs.evolve(REQUEST, max_tokens=40)
    for moves in (2, 3):
        kills = {5: 1, 10: 2, 15: 3}
        async with fake_fleet(5, limits=FleetLimits(moves=moves)) as fleet:
            events = []
            async with fleet.backend.generate(long) as tokens:
                error = None
                while error is None:
                    try:
                        events += await anext(tokens)
                    except StopAsyncIteration:
                        break
                    except NodeLost as raised:
                        error = raised
                    if len(events) >= min(kills, default=100):
                        del kills[min(kills)]
                        holder(fleet).kill()
                if error is not None:
                    with pytest.raises(NodeLost):  # sent again, and nothing else
                        await anext(tokens)
            assert (error is None) == (moves == 3)
            assert tokens_of(events) == answer(long)[: len(tokens_of(events))]


# --- hung, frozen, stalled


@pytest.mark.spec("HEAD-7", "HEAD-28")
async def test_a_frozen_node_is_noticed_in_2_5_s_and_its_late_tokens_are_ignored(
    autojump_clock,
):
    async with fake_fleet(2) as fleet:
        frozen = []

        def freeze():
            frozen.append(holder(fleet))
            frozen[0].freeze()

        events, times = await read_with_times(fleet.backend, REQUEST, {5: freeze})
        assert tokens_of(events) == answer(REQUEST)
        assert 1.5 < longest_gap(times) < 2.5
        frozen[0].thaw()
        await trio.sleep(3)
        assert frozen[0].sessions == 0  # the session that it continued was ended when it came back
        assert not any(member.absence for member in fleet.backend.members)


@pytest.mark.spec("HEAD-7")
async def test_a_frozen_node_that_thaws_in_time_loses_nothing(autojump_clock):
    async with fake_fleet(2) as fleet:
        async with trio.open_nursery() as nursery:

            def freeze():
                holder(fleet).freeze()
                nursery.start_soon(thaw)

            async def thaw():
                await trio.sleep(1.5)
                for node in fleet.nodes.values():
                    node.thaw()

            events = await events_of(fleet.backend, REQUEST, {5: freeze})
        assert tokens_of(events) == answer(REQUEST)
        assert fleet.placements_of("r") == 1


@pytest.mark.spec("HEAD-8", "HEAD-29")
async def test_a_hanging_engine_is_left_and_avoided_until_it_makes_a_step(
    autojump_clock,
):
    async with fake_fleet(2) as fleet:
        hung = []

        def hang():
            hung.append(holder(fleet))
            hung[0].hang_engine()

        events, times = await read_with_times(fleet.backend, REQUEST, {5: hang})
        assert tokens_of(events) == answer(REQUEST)
        assert 3.0 < longest_gap(times) < 3.6
        await events_of(fleet.backend, attrs.evolve(REQUEST, request_id="other"))
        assert len(hung[0].requests) == 1
        hung[0].thaw()
        await trio.sleep(1)
        assert all(not member.why_not("hash") for member in fleet.backend.members)


@pytest.mark.spec("HEAD-8")
async def test_a_long_prompt_in_one_step_is_not_a_stall(autojump_clock):
    long = attrs.evolve(REQUEST, prompt=tuple(range(200)) * 2)
    async with fake_fleet(2) as fleet:

        async def hold():
            for node in fleet.nodes.values():
                node.hang_engine()
            await trio.sleep(6)
            for node in fleet.nodes.values():
                node.thaw()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold)
            assert tokens_of(await events_of(fleet.backend, long)) == answer(long)
        assert fleet.placements_of("r") == 1


@pytest.mark.spec("HEAD-30")
async def test_a_client_that_does_not_read_is_not_a_stall(autojump_clock):
    long = attrs.evolve(REQUEST, max_tokens=200)
    async with fake_fleet(2) as fleet:
        async with fleet.backend.generate(long) as tokens:
            await trio.sleep(30)
            events = [event async for batch in tokens for event in batch]
        assert tokens_of(events) == answer(long)
        assert fleet.placements_of("r") == 1


@pytest.mark.spec("HEAD-9")
async def test_an_engine_that_reports_its_failure_is_replaced(autojump_clock):
    async with fake_fleet(2) as fleet:
        events = await events_of(fleet.backend, REQUEST, {5: lambda: holder(fleet).fail_engine()})
        assert tokens_of(events) == answer(REQUEST)


# --- lost, doubled and late messages


@pytest.mark.spec("HEAD-6")
@pytest.mark.parametrize("fault", ["lost_request", "lost_reply", "hung", "doubled"])
async def test_a_lost_hung_or_doubled_poll_moves_and_loses_nothing(autojump_clock, fault):
    for count in range(8):
        async with fake_fleet(2) as fleet:
            events = await events_of(fleet.backend, REQUEST, {count: lambda: holder(fleet).faults.poll.append(fault)})
            assert tokens_of(events) == answer(REQUEST)
            assert fleet.placements_of("r") == 1


@pytest.mark.spec("HEAD-6")
async def test_two_polls_lost_in_a_row_move_the_session(autojump_clock):
    async with fake_fleet(2) as fleet:
        events = await events_of(
            fleet.backend, REQUEST, {5: lambda: holder(fleet).faults.poll.extend(["lost_reply"] * 2)}
        )
        assert tokens_of(events) == answer(REQUEST)
        assert fleet.placements_of("r") == 2


@pytest.mark.spec("HEAD-5")
async def test_missing_events_are_a_node_fault_and_come_from_another_node(autojump_clock):
    async with fake_fleet(2) as fleet:
        events = await events_of(fleet.backend, REQUEST, {5: lambda: holder(fleet).faults.poll.append("gap")})
        assert tokens_of(events) == answer(REQUEST)
        assert fleet.placements_of("r") == 2
        await trio.sleep(0.1)
        assert [node.sessions for node in fleet.nodes.values()] == [0, 0]


@pytest.mark.spec("HEAD-31")
@pytest.mark.parametrize("fault", ["lost_request", "lost_reply"])
async def test_a_placement_with_a_lost_answer_is_sent_again_and_placed_once(autojump_clock, fault):
    async with fake_fleet(1) as fleet:
        fleet.nodes["n0"].faults.place.append(fault)
        assert tokens_of(await events_of(fleet.backend, REQUEST)) == answer(REQUEST)
        assert fleet.placements_of("r") == 1


@pytest.mark.spec("HEAD-31")
async def test_a_placement_that_fails_twice_goes_to_another_node(autojump_clock):
    async with fake_fleet(2) as fleet:
        for node in fleet.nodes.values():
            node.faults.place.extend(["lost_request"] * 2)
        with pytest.raises(NodeLost):
            await events_of(fleet.backend, REQUEST)
        first = next(iter(fleet.nodes.values()))
        first.faults.place.extend(["lost_request"] * 2)
        assert tokens_of(await events_of(fleet.backend, REQUEST)) == answer(REQUEST)


@pytest.mark.spec("HEAD-31")
async def test_a_node_that_dies_during_a_placement_is_skipped(autojump_clock):
    async with fake_fleet(2) as fleet, trio.open_nursery() as nursery:
        for node in fleet.nodes.values():
            node.faults.place.append("hung")

        async def kill():
            await trio.sleep(0.005)
            next(node for node in fleet.nodes.values() if "place" in node.link.calls).kill()

        nursery.start_soon(kill)
        with trio.fail_after(30):
            assert tokens_of(await events_of(fleet.backend, REQUEST)) == answer(REQUEST)


@pytest.mark.spec("HEAD-10")
async def test_messages_of_an_old_epoch_start_nothing_and_are_ignored(autojump_clock):
    async with fake_fleet(1) as fleet:
        node = fleet.nodes["n0"]
        node.faults.poll.extend([])

        def disturb():
            node.faults.poll.append("gap")
            node.faults.place.append("late")

        events = await events_of(fleet.backend, REQUEST, {5: disturb})
        assert tokens_of(events) == answer(REQUEST)
        assert [key.epoch for key, *_ in node.link.placed] == [1, 2]
        assert fleet.placements_of("r") == 2
        await trio.sleep(0.1)
        assert node.sessions == 0


@pytest.mark.spec("HEAD-9")
async def test_a_session_that_its_node_has_forgotten_continues_elsewhere(autojump_clock):
    async with fake_fleet(2) as fleet:

        def forget():
            node, key = holder(fleet), SessionKey("h0", 1, 1)
            fleet.nursery.start_soon(node.service.cancel, [key])

        events = await events_of(fleet.backend, REQUEST, {5: forget})
        assert tokens_of(events) == answer(REQUEST)
        assert fleet.placements_of("r") == 2


# --- started again, no node left


@pytest.mark.spec("HEAD-9")
async def test_a_restarted_node_has_no_sessions_and_gets_them_again(autojump_clock):
    async with fake_fleet(1) as fleet:
        node = fleet.nodes["n0"]
        events = await events_of(fleet.backend, REQUEST, {5: lambda: fleet.nursery.start_soon(node.restart)})
        assert tokens_of(events) == answer(REQUEST)
        assert fleet.placements_of("r") == 2


@pytest.mark.spec("HEAD-32")
async def test_without_a_node_an_answer_ends_with_one_error_after_a_bounded_wait(autojump_clock):
    async with fake_fleet(1) as fleet:
        killed = Moments()
        events = []
        async with fleet.backend.generate(REQUEST) as tokens:
            with pytest.raises(NodeLost, match="no other node could continue"):
                while True:
                    events += await anext(tokens)
                    if len(events) == 5:
                        killed.note(fleet.nodes["n0"].kill)()
        assert tokens_of(events) == answer(REQUEST)[:4]
        assert 5 <= killed.ago_s < 5.5
        with pytest.raises(NoNode, match="no node serves 'hash' now"):
            await events_of(fleet.backend, REQUEST)


@pytest.mark.spec("HEAD-32")
async def test_an_answer_waits_for_a_node_that_can_continue_it(autojump_clock):
    async with fake_fleet(1) as fleet:

        async def add():
            await trio.sleep(4)
            await fleet.add("n1")

        def kill():
            holder(fleet).kill()
            fleet.nursery.start_soon(add)

        assert tokens_of(await events_of(fleet.backend, REQUEST, {5: kill})) == answer(REQUEST)


@pytest.mark.spec("HEAD-3")
async def test_a_node_of_other_numerics_never_continues_an_answer(autojump_clock):
    async with fake_fleet(2) as fleet:
        await fleet.add("other", numerics="fp_other")
        await trio.sleep(1)
        for _ in range(8):
            await events_of(fleet.backend, REQUEST)
        assert fleet.nodes["other"].requests == []
        with pytest.raises(NodeLost):
            await events_of(fleet.backend, REQUEST, {5: lambda: [fleet.nodes[name].kill() for name in ("n0", "n1")]})
        assert fleet.backend.info().system_fingerprint == "fp_other"  # new requests are answered by the remaining nodes
        assert tokens_of(await events_of(fleet.backend, REQUEST)) == answer(REQUEST)


# --- the wall


@pytest.mark.spec("HEAD-12")
async def test_the_wall_limit_spans_moves_and_a_node_gets_the_remainder(autojump_clock):
    endless = attrs.evolve(REQUEST, max_tokens=2000)
    async with fake_fleet(2, limits=FleetLimits(wall_s=4.0)) as fleet:
        start = trio.current_time()
        with pytest.raises(DeadlineExceeded, match="4 s"):
            await events_of(fleet.backend, endless, {100: lambda: holder(fleet).kill()})
        assert trio.current_time() - start < 4.5
        walls = sorted(call[2] for node in fleet.nodes.values() for call in node.link.placed)
        assert walls[1] == pytest.approx(4.0)
        assert 1.5 < walls[0] < 2.5


@pytest.mark.spec("HEAD-12")
async def test_a_client_that_does_not_read_cannot_outlast_the_wall(autojump_clock):
    endless = attrs.evolve(REQUEST, max_tokens=2000)
    async with fake_fleet(1, limits=FleetLimits(wall_s=4.0)) as fleet, fleet.backend.generate(endless) as tokens:
        await trio.sleep(6)
        assert fleet.nodes["n0"].sessions == 0
        with pytest.raises(DeadlineExceeded):
            async for _ in tokens:
                pass


@pytest.mark.spec("HEAD-12")
async def test_waiting_for_a_node_ends_at_the_wall(autojump_clock):
    async with fake_fleet(1, limits=FleetLimits(wall_s=4.0)) as fleet:
        start = trio.current_time()
        with pytest.raises(DeadlineExceeded):
            await events_of(fleet.backend, REQUEST, {5: lambda: holder(fleet).kill()})
        assert 4.0 <= trio.current_time() - start < 4.3


async def test_an_error_that_every_node_would_give_is_not_retried(autojump_clock):
    async with fake_fleet(2) as fleet:
        for node in fleet.nodes.values():
            node.backend.fail()
        with pytest.raises(EngineFailed):
            await events_of(fleet.backend, REQUEST)
