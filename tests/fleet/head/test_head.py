"""A head over healthy nodes: its statistics, admission, choice of nodes, and clients that leave."""

import attrs
import numpy as np
import pytest
import trio
import trio.testing

from tests.kit.engine.hash_backend import HashBackend, answer, events_of, tokens_of
from tests.kit.fleet.fake_node import MODEL, FakeNode, fake_fleet
from tlserve.errors import ContextLengthExceeded, DrainCut, Draining, EngineFailed, Overloaded, Refusal
from tlserve.fleet.head.backend import FleetBackend
from tlserve.fleet.head.limits import FleetLimits
from tlserve.fleet.link import NodeLost, NoNode
from tlserve.generation import EmbeddingRequest, GenerationRequest
from tlserve.sampling_params import SamplingParams

REQUEST = GenerationRequest(prompt=tuple(range(40)), max_tokens=12, seed=7, logprobs=2, request_id="r")
INPUTS = EmbeddingRequest(inputs=((1, 2), (3,), (1, 2)))


def number(nth, **changes):
    return attrs.evolve(REQUEST, request_id=f"r{nth}", prompt=(nth,) * 20, **changes)


@pytest.mark.spec("API-147")
async def test_a_node_learns_whose_request_it_has(autojump_clock):
    async with fake_fleet(1) as fleet:
        await events_of(fleet.backend, attrs.evolve(REQUEST, tenant="key a"))
        assert [request.tenant for request in fleet.nodes["n0"].requests] == ["key a"]


# --- what is served


@pytest.mark.spec("HEAD-18")
async def test_the_context_is_the_smallest_among_the_ready_nodes(autojump_clock):
    async with fake_fleet(1, context_tokens=200) as fleet:
        await fleet.add("small", context_tokens=100)
        await fleet.backend.wait_ready(2)
        info = fleet.backend.info()
        assert (info.context_tokens, info.ready, info.admission_limit) == (100, True, 32)
        fleet.nodes["small"].kill()
        await trio.sleep(1)
        assert fleet.backend.info().context_tokens == 200


@pytest.mark.spec("HEAD-18")
async def test_an_answer_ends_at_the_smallest_context_on_any_node(autojump_clock):
    long = attrs.evolve(REQUEST, max_tokens=500)
    async with fake_fleet(1, context_tokens=100) as fleet:
        await fleet.add("large", context_tokens=200)
        await fleet.backend.wait_ready(2)
        for seed in range(4):
            request = attrs.evolve(long, seed=seed)
            assert tokens_of(await events_of(fleet.backend, request)) == answer(request, 100)
        with pytest.raises(ContextLengthExceeded, match="100"):
            await events_of(fleet.backend, attrs.evolve(REQUEST, prompt=(1,) * 100))


@pytest.mark.spec("HEAD-35")
async def test_without_a_node_the_settings_apply_and_the_reason_names_known_nodes(autojump_clock):
    async with fake_fleet(0, wait_ready=False) as fleet:
        info = fleet.backend.info()
        assert (info.context_tokens, info.ready) == (MODEL.max_context, False)
        assert "no node is known" in info.not_ready_reason
        await fleet.add("other", model_id="other")
        await trio.sleep(1)
        assert "other serves 'other'" in fleet.backend.info().not_ready_reason
        with pytest.raises(NoNode, match="no node serves"):
            await events_of(fleet.backend, REQUEST)
        with pytest.raises(NoNode):
            await fleet.backend.embed(INPUTS)


@pytest.mark.spec("HEAD-35")
async def test_a_head_that_does_not_run_is_not_ready(autojump_clock):
    async with fake_fleet(1) as fleet:
        backend = FleetBackend(fleet.directory, MODEL)
        assert backend.info().not_ready_reason == "the head is not running"
        with pytest.raises(NoNode):
            await events_of(backend, REQUEST)


@pytest.mark.spec("HEAD-19")
async def test_the_numerics_of_most_nodes_answer_and_two_heads_choose_the_same(autojump_clock):
    async with fake_fleet(0, heads=2, wait_ready=False) as fleet:
        for name, numerics in [("a", "fp_b"), ("b", "fp_a"), ("c", "fp_b"), ("d", "fp_a")]:
            await fleet.add(name, numerics=numerics)
        await trio.sleep(1)
        assert [head.info().system_fingerprint for head in fleet.heads] == ["fp_a", "fp_a"]
        fleet.nodes["b"].kill()
        await trio.sleep(1)
        assert [head.info().system_fingerprint for head in fleet.heads] == ["fp_b", "fp_b"]


@pytest.mark.spec("HEAD-19")
async def test_settings_can_name_the_numerics_that_answer(autojump_clock):
    model = attrs.evolve(MODEL, numerics="fp_two")
    async with fake_fleet(2, model=model, wait_ready=False) as fleet:
        await trio.sleep(1)
        assert "has other numerics" in fleet.backend.info().not_ready_reason
        await fleet.add("two", numerics="fp_two")
        await fleet.backend.wait_ready()
        await events_of(fleet.backend, REQUEST)
        assert fleet.nodes["two"].requests


@pytest.mark.spec("HEAD-35")
async def test_a_node_that_is_not_ready_is_tried_again_soon(autojump_clock):
    async with fake_fleet(1, wait_ready=False) as fleet:
        fleet.nodes["n0"].backend.ready = False
        await trio.sleep(1)
        assert "n0 told so" in fleet.backend.info().not_ready_reason
        fleet.nodes["n0"].backend.ready = True
        with trio.fail_after(3):
            await fleet.backend.wait_ready()


@pytest.mark.spec("HEAD-20")
async def test_statistics_are_sums_and_counters_never_fall(autojump_clock):
    async with fake_fleet(2) as fleet:
        for nth in range(6):
            await events_of(fleet.backend, number(nth))
        await trio.sleep(2)
        before = fleet.backend.statistics()
        assert before.generated_tokens_total == 6 * 12
        for act in (
            fleet.nodes["n0"].kill,
            lambda: fleet.directory.gone("n1"),
            lambda: fleet.directory.up(fleet.nodes["n1"]),
        ):
            act()
            await trio.sleep(1)
            assert fleet.backend.statistics().generated_tokens_total == 6 * 12
        await fleet.nodes["n0"].restart()
        await trio.sleep(3)
        await events_of(fleet.backend, REQUEST)
        await trio.sleep(2)
        assert fleet.backend.statistics().generated_tokens_total == 7 * 12
        assert fleet.backend.statistics().active_sequences == 0


# --- admission


@pytest.mark.spec("HEAD-21")
async def test_a_full_node_is_skipped_and_a_full_fleet_refuses_at_once(autojump_clock):
    async with fake_fleet(2, slots=1, queue=0) as fleet, trio.open_nursery() as nursery:
        entered = []
        left = trio.Event()

        async def hold(nth):
            async with fleet.backend.generate(number(nth, max_tokens=500)):
                entered.append(nth)
                await left.wait()

        nursery.start_soon(hold, 0)
        nursery.start_soon(hold, 1)
        await trio.sleep(0.1)
        assert sorted(entered) == [0, 1]
        with pytest.raises(Overloaded, match="all nodes are full") as refused:
            await events_of(fleet.backend, number(2))
        assert refused.value.retry_after_s == 2
        left.set()
        await trio.sleep(0.1)
        assert tokens_of(await events_of(fleet.backend, number(2))) == answer(number(2))


@pytest.mark.spec("HEAD-21")
async def test_a_head_has_its_own_limit(autojump_clock):
    async with fake_fleet(2, limits=FleetLimits(admission=1)) as fleet, fleet.backend.generate(number(0)):
        assert fleet.backend.admitted == 1
        assert fleet.backend.info().admission_limit == 1
        with pytest.raises(Overloaded):
            await events_of(fleet.backend, number(1))
        with pytest.raises(Overloaded):
            await fleet.backend.embed(INPUTS)


@pytest.mark.spec("HEAD-32")
async def test_a_moved_answer_waits_for_capacity_like_a_queued_request(autojump_clock):
    async with fake_fleet(2, slots=1, queue=0) as fleet, trio.open_nursery() as nursery:
        done = []

        async def ask(nth, count):
            request = number(nth, max_tokens=count)
            done.append(tokens_of(await events_of(fleet.backend, request)) == answer(request))

        nursery.start_soon(ask, 0, 300)
        nursery.start_soon(ask, 1, 500)
        await trio.sleep(1)
        fleet.node_of("r1").kill()
        await trio.sleep(7)
        assert done == [True]
        await trio.sleep(10)
        assert done == [True, True]


@pytest.mark.spec("HEAD-22")
@pytest.mark.parametrize(
    ("changes", "feature"),
    [
        ({"sampling": SamplingParams(presence_penalty=0.1)}, "penalties"),
        ({"sampling": SamplingParams(logit_bias=((1, 1.0),))}, "logit_bias"),
        ({"logprobs": 0}, "logprobs"),
        ({"prompt_logprobs": 0}, "prompt_logprobs"),
        ({"min_tokens": 1}, "min_tokens"),
    ],
)
async def test_a_feature_no_node_has_is_refused_by_name_and_no_op_values_served(changes, feature, autojump_clock):
    words = f"nodes of this kind have no {feature}; use a node that has"
    plain = attrs.evolve(REQUEST, logprobs=None, sampling=SamplingParams(repetition_penalty=1.0, presence_penalty=0.0))
    async with fake_fleet(0, wait_ready=False) as fleet:
        node = FakeNode("old")
        node.refusals = {feature: words, "embeddings": "no embeddings here"}
        await node.start(fleet.nursery)
        fleet.directory.up(node)
        await fleet.backend.wait_ready()
        with pytest.raises(Refusal, match=words) as refused:
            await events_of(fleet.backend, attrs.evolve(plain, **changes))
        assert refused.value.param == feature
        with pytest.raises(Refusal, match="no embeddings here"):
            await fleet.backend.embed(INPUTS)
        assert tokens_of(await events_of(fleet.backend, plain)) == answer(plain)
        await fleet.add("new")
        await fleet.backend.wait_ready(2)
        assert tokens_of(await events_of(fleet.backend, attrs.evolve(plain, **changes)))
        assert len(fleet.nodes["new"].requests) == 1


# --- clients


@pytest.mark.spec("HEAD-13")
async def test_after_a_client_has_left_its_node_has_nothing_of_it(autojump_clock):
    async with fake_fleet(1) as fleet:
        node = fleet.nodes["n0"]
        for count in range(6):
            async with fleet.backend.generate(REQUEST) as tokens:
                events = []
                while len(events) < count:
                    events += await anext(tokens)
            await trio.testing.wait_all_tasks_blocked()
            assert (node.sessions, len(node.backend.running), fleet.backend.admitted) == (0, 0, 0)


@pytest.mark.spec("HEAD-13")
async def test_an_answer_that_has_ended_is_forgotten_by_its_node_with_the_next_poll(autojump_clock):
    async with fake_fleet(1) as fleet:
        async with fleet.backend.generate(REQUEST) as tokens:
            assert len([event async for batch in tokens for event in batch]) == 13
            await trio.sleep(0.01)
            assert fleet.nodes["n0"].sessions == 0  # though its client has not left
        assert "cancel" not in fleet.nodes["n0"].link.calls


@pytest.mark.spec("HEAD-13")
async def test_a_client_leaves_a_node_that_does_not_answer_within_a_second(autojump_clock):
    async with fake_fleet(1) as fleet:
        async with fleet.backend.generate(REQUEST) as tokens:
            await anext(tokens)
            fleet.nodes["n0"].freeze()
            start = trio.current_time()
        assert trio.current_time() - start <= 1.0


@pytest.mark.spec("HEAD-13")
async def test_a_client_cancelled_during_its_placement_leaves_nothing(autojump_clock):
    async with fake_fleet(1) as fleet:
        fleet.nodes["n0"].faults.place.append("hung")
        with trio.move_on_after(0.01):
            await events_of(fleet.backend, REQUEST)
        await trio.sleep(0.1)
        assert (fleet.nodes["n0"].sessions, fleet.backend.admitted) == (0, 0)


@pytest.mark.spec("HEAD-14")
async def test_a_slow_client_pauses_its_own_session_and_no_other(autojump_clock):
    slow, fast = number(0, max_tokens=400), number(1, max_tokens=400)
    async with fake_fleet(1) as fleet, trio.open_nursery() as nursery:
        async with fleet.backend.generate(slow) as tokens:
            start = trio.current_time()
            assert tokens_of(await events_of(fleet.backend, fast)) == answer(fast)
            assert trio.current_time() - start < 400 * 0.02 + 0.1
            [placement] = fleet.backend.members[0].placements.values()
            assert 64 <= placement.have <= 64 + 2  # and the node made no further tokens: it stops reading its engine
            events = [event async for batch in tokens for event in batch]
        assert tokens_of(events) == answer(slow)
        nursery.cancel_scope.cancel()


@pytest.mark.spec("HEAD-17")
async def test_two_heads_over_the_same_nodes_do_not_affect_each_other(autojump_clock):
    async with fake_fleet(2, heads=2) as fleet, trio.open_nursery() as nursery:
        answers = {}

        async def ask(nth):
            events = await events_of(
                fleet.heads[nth % 2], number(nth), {6: fleet.nodes["n0"].kill} if nth == 5 else None
            )
            answers[nth] = tokens_of(events)

        for nth in range(12):
            nursery.start_soon(ask, nth)
        await trio.sleep(30)
        assert answers == {nth: answer(number(nth)) for nth in range(12)}


# --- nodes leave


@pytest.mark.spec("HEAD-15")
async def test_a_draining_node_gets_nothing_new_and_finishes_within_the_grace(autojump_clock):
    async with fake_fleet(2) as fleet:
        drained = []

        def drain():
            drained.append(fleet.node_of("r"))
            fleet.nursery.start_soon(drained[0].link.drain)

        assert tokens_of(await events_of(fleet.backend, REQUEST, {5: drain})) == answer(REQUEST)
        assert fleet.placements_of("r") == 1
        for nth in range(4):
            await events_of(fleet.backend, number(nth))
        assert len(drained[0].requests) == 1


@pytest.mark.spec("HEAD-15", "HEAD-33")
async def test_a_session_on_a_draining_node_moves_after_the_grace_without_failure(autojump_clock):
    long = attrs.evolve(REQUEST, max_tokens=100)
    async with fake_fleet(3, limits=FleetLimits(drain_grace_s=0.5, moves=0)) as fleet:

        def drain():
            fleet.nursery.start_soon(fleet.node_of("r").link.drain)

        assert tokens_of(await events_of(fleet.backend, long, {5: drain, 60: drain})) == answer(long)
        assert fleet.placements_of("r") == 3
        await trio.sleep(0.1)
        assert all(node.sessions == 0 for node in fleet.nodes.values())


@pytest.mark.spec("HEAD-15")
async def test_without_another_node_a_session_stays_on_the_draining_one(autojump_clock):
    long = attrs.evolve(REQUEST, max_tokens=100)
    async with fake_fleet(1, limits=FleetLimits(drain_grace_s=0.1)) as fleet:
        events = await events_of(
            fleet.backend, long, {5: lambda: fleet.nursery.start_soon(fleet.nodes["n0"].link.drain)}
        )
        assert tokens_of(events) == answer(long)
        with pytest.raises(NoNode, match="no node serves"):
            await events_of(fleet.backend, REQUEST)


@pytest.mark.spec("HEAD-33")
async def test_a_rolling_upgrade_of_all_nodes_cuts_no_stream(autojump_clock):
    async with fake_fleet(3, limits=FleetLimits(drain_grace_s=0.2, moves=0)) as fleet, trio.open_nursery() as nursery:
        answers = {}

        async def ask(nth):
            answers[nth] = tokens_of(await events_of(fleet.backend, number(nth, max_tokens=200)))

        for nth in range(8):
            nursery.start_soon(ask, nth)
        for node in list(fleet.nodes.values()):
            await node.link.drain()
            with trio.fail_after(5):
                await node.service.wait_empty()
            await node.restart()
            await trio.sleep(1)
        await trio.sleep(5)
        assert answers == {nth: answer(number(nth, max_tokens=200)) for nth in range(8)}


@pytest.mark.spec("HEAD-16")
async def test_a_new_link_to_the_same_node_keeps_its_sessions(autojump_clock):
    async with fake_fleet(1) as fleet:
        node = fleet.nodes["n0"]
        assert tokens_of(await events_of(fleet.backend, REQUEST, {5: lambda: fleet.directory.up(node)})) == answer(
            REQUEST
        )
        assert fleet.placements_of("r") == 1


@pytest.mark.spec("HEAD-34")
async def test_a_node_that_is_removed_from_the_list_is_left(autojump_clock):
    async with fake_fleet(2) as fleet:
        events = await events_of(fleet.backend, REQUEST, {5: lambda: fleet.directory.gone(fleet.node_of("r").name)})
        assert tokens_of(events) == answer(REQUEST)
        assert len(fleet.backend.members) == 1


# --- embeddings


@pytest.mark.spec("HEAD-23")
async def test_embeddings_come_from_a_node_and_move_when_it_is_lost(autojump_clock):
    truth = [HashBackend()._embed_one(tokens) for tokens in INPUTS.inputs]
    async with fake_fleet(2, step_s=0.1) as fleet, trio.open_nursery() as nursery:

        async def kill():
            await trio.sleep(0.05)
            next(node for node in fleet.nodes.values() if "embed" in node.link.calls).kill()

        nursery.start_soon(kill)
        vectors = await fleet.backend.embed(INPUTS)
        assert np.array_equal(vectors, truth)
        for node in fleet.nodes.values():
            node.kill()
        await trio.sleep(1)
        with pytest.raises(NoNode):
            await fleet.backend.embed(INPUTS)


@pytest.mark.spec("HEAD-23")
async def test_embeddings_go_to_the_node_with_less_work(autojump_clock):
    async with fake_fleet(2) as fleet, fleet.backend.generate(REQUEST):
        await fleet.backend.embed(INPUTS)
        idle = next(node for node in fleet.nodes.values() if node is not fleet.node_of("r"))
        assert "embed" in idle.link.calls


@pytest.mark.spec("HEAD-23")
async def test_embeddings_end_with_the_error_of_the_last_node(autojump_clock):
    async with fake_fleet(2) as fleet:
        for node in fleet.nodes.values():
            node.faults.embed.append("lost_reply")
        with pytest.raises(NodeLost):
            await fleet.backend.embed(INPUTS)


# --- the end of a head


@pytest.mark.spec("HEAD-24")
async def test_a_draining_head_finishes_its_answers_and_leaves_the_nodes_running(autojump_clock):
    async with fake_fleet(1, heads=2) as fleet, trio.open_nursery() as nursery:
        async with fleet.backend.generate(REQUEST) as tokens:
            nursery.start_soon(fleet.backend.drain)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(Draining):
                await events_of(fleet.backend, number(1))
            assert len([event async for batch in tokens for event in batch]) == 13
        assert tokens_of(await events_of(fleet.heads[1], number(1))) == answer(number(1))


@pytest.mark.spec("HEAD-24")
async def test_a_head_that_is_cut_gives_every_client_an_error(autojump_clock):
    async with fake_fleet(1) as fleet:
        async with fleet.backend.generate(REQUEST) as tokens:
            await anext(tokens)
            fleet.backend.cut()
            with pytest.raises(DrainCut):
                async for _ in tokens:
                    pass
        await trio.sleep(0.1)
        assert fleet.nodes["n0"].sessions == 0


@pytest.mark.spec("HEAD-24")
async def test_a_head_that_stops_ends_open_answers_and_admits_nothing(autojump_clock):
    async with fake_fleet(1) as fleet:
        async with fleet.backend.generate(REQUEST) as tokens:
            await anext(tokens)
            fleet.backend.stop()
            with pytest.raises(DrainCut):
                async for _ in tokens:
                    pass
        with pytest.raises(EngineFailed):
            await events_of(fleet.backend, REQUEST)
        await trio.sleep(12)
        assert fleet.nodes["n0"].sessions == 0
