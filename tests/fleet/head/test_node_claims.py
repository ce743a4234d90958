"""A node that says what cannot be true: the request moves, the head continues, and no client sees the node's address."""

import math

import attrs
import numpy as np
import pytest
import trio

from tests.kit.engine.hash_backend import VOCABULARY, answer, events_of, prompt_logprobs, tokens_of
from tests.kit.fleet.fake_node import fake_fleet
from tlserve import errors
from tlserve.api.errors import describe_error
from tlserve.fleet import wire
from tlserve.fleet.head.limits import FleetLimits
from tlserve.fleet.head.session import ORDERLY, shown
from tlserve.fleet.link import NodeLost
from tlserve.fleet.remote_node import RemoteNode
from tlserve.generation import (
    Distribution,
    EmbeddingRequest,
    Finish,
    GenerationRequest,
    PrefillStarted,
    PromptLogprobs,
    TokenEvent,
    TokenLogprob,
)

REQUEST = GenerationRequest(
    prompt=tuple(range(40)), max_tokens=12, seed=7, logprobs=2, prompt_logprobs=1, request_id="r", progress=True
)
URL = "http://10.9.8.7:6543"


def change(event, **fields):
    return lambda told: attrs.evolve(told, **fields) if isinstance(told, event) else told


def change_top(told):
    if not isinstance(told, TokenEvent):
        return told
    return attrs.evolve(told, top=(TokenLogprob(told.token, -1.0), TokenLogprob(VOCABULARY, -2.0)))


def change_prompt(told, **fields):
    if not isinstance(told, PromptLogprobs):
        return told
    return attrs.evolve(told, tokens=tuple(attrs.evolve(each, **fields) for each in told.tokens))


IMPOSSIBLE = {
    "an id far beyond the vocabulary": change(TokenEvent, token=10**9),
    "the id after the last": change(TokenEvent, token=VOCABULARY),
    "a negative id": change(TokenEvent, token=-5),
    "a log-probability that is no number": change(TokenEvent, logprob=math.nan),
    "an infinite log-probability": change(TokenEvent, logprob=-math.inf),
    "no log-probability": change(TokenEvent, logprob=None, top=()),
    "fewer best tokens than asked for": change(TokenEvent, top=(TokenLogprob(1, -1.0),)),
    "a best token beyond the vocabulary": change_top,
    "an early end": change(TokenEvent, finish=Finish.LENGTH),
    "a stop without a stop id": change(TokenEvent, finish=Finish.STOP),
    "another prompt": lambda told: change_prompt(told, token=250),
    "a prompt's log-probability that is no number": lambda told: change_prompt(told, logprob=math.nan),
    "more cached tokens than the prompt has": change(PrefillStarted, cached_tokens=41),
    "negative cached tokens": change(PrefillStarted, cached_tokens=-1),
}


def alter_events(alter):
    """Return a change of every event in the replies to polls."""

    def altered(kind, told):
        if kind != "poll":
            return told
        sessions = [attrs.evolve(each, events=tuple(map(alter, each.events))) for each in told.sessions]
        return attrs.evolve(told, sessions=tuple(sessions))

    return altered


def alter_figures(**figures):
    return lambda kind, told: (
        attrs.evolve(told, statistics=attrs.evolve(told.statistics, **figures)) if kind == "poll" else told
    )


async def first_node(fleet):
    """Return the node that gets `REQUEST` first, and the other one."""
    async with fleet.backend.generate(REQUEST):
        first = fleet.backend.node_of("r")
    (other,) = fleet.nodes.keys() - {first}
    return fleet.nodes[first], fleet.nodes[other]


@pytest.mark.spec("HEAD-36")
@pytest.mark.parametrize("lie", IMPOSSIBLE)
async def test_an_impossible_event_moves_the_request_to_another_node(lie, autojump_clock):
    async with fake_fleet(2) as fleet:
        bad, other = await first_node(fleet)
        bad.faults.alter = alter_events(IMPOSSIBLE[lie])
        events = await events_of(fleet.backend, REQUEST)
        assert tokens_of(events) == answer(REQUEST)
        assert [event for event in events if isinstance(event, PromptLogprobs)] == prompt_logprobs(REQUEST)
        assert (len(bad.requests), len(other.requests)) == (2, 1)
        assert fleet.backend.figures().nodes_ready == 2


@pytest.mark.spec("HEAD-36")
async def test_a_negative_start_moves_the_request(autojump_clock):
    def altered(kind, told):
        if kind != "poll":
            return told
        return attrs.evolve(told, sessions=tuple(attrs.evolve(each, start=-3) for each in told.sessions))

    async with fake_fleet(2) as fleet:
        bad, _ = await first_node(fleet)
        bad.faults.alter = altered
        assert tokens_of(await events_of(fleet.backend, REQUEST)) == answer(REQUEST)


@pytest.mark.spec("HEAD-37")
@pytest.mark.parametrize(
    "figures",
    [
        {"queue_depth": -(10**6)},
        {"step_seconds_total": math.nan},
        {"step_rows": Distribution((1.0, 2.0), (0,), 0.0)},
        {"step_rows": Distribution((1.0,), (3, -1), 0.0)},
    ],
)
async def test_figures_that_cannot_be_added_make_a_node_lost(figures, autojump_clock):
    async with fake_fleet(2) as fleet:
        bad, _ = await first_node(fleet)
        bad.faults.alter = alter_figures(**figures)
        await trio.sleep(2)
        total = fleet.backend.statistics()
        assert total.queue_depth >= 0
        assert math.isfinite(total.step_seconds_total)
        assert tokens_of(await events_of(fleet.backend, REQUEST)) == answer(REQUEST)


@pytest.mark.spec("HEAD-37")
async def test_a_description_with_impossible_sizes_is_not_believed(autojump_clock):
    async with fake_fleet(2) as fleet:
        bad, good = fleet.nodes.values()
        bad.faults.alter = lambda kind, told: (
            attrs.evolve(told, backend=attrs.evolve(told.backend, admission_limit=-(10**9)))
            if kind == "hello"
            else told
        )
        await bad.restart()
        await trio.sleep(3)
        assert fleet.backend.info().admission_limit == good.backend.info().admission_limit
        assert tokens_of(await events_of(fleet.backend, REQUEST)) == answer(REQUEST)


@pytest.mark.spec("HEAD-37")
@pytest.mark.parametrize(
    "spoil",
    [
        lambda vectors: vectors[:-1],
        lambda vectors: tuple(vector[:-1] for vector in vectors),
        lambda vectors: tuple(np.full_like(vector, np.nan) for vector in vectors),
    ],
)
async def test_vectors_that_do_not_fit_come_from_another_node(spoil, autojump_clock):
    asked = EmbeddingRequest(inputs=((1, 2), (3,)))
    async with fake_fleet(2) as fleet:
        right = await fleet.backend.embed(asked)
        nodes = list(fleet.nodes.values())
        for bad in nodes:
            bad.faults.alter = lambda kind, told: spoil(told) if kind == "embed" else told
            for one, other in zip(await fleet.backend.embed(asked), right, strict=True):
                assert one.tobytes() == other.tobytes()
            bad.faults.alter = lambda _, told: told


def fail(kind, error):
    def altered(asked, told):
        if asked == kind:
            raise error
        return told

    return altered


@pytest.mark.spec("HEAD-36")
@pytest.mark.parametrize("kind", ["place", "embed"])
async def test_an_unforeseen_error_of_a_link_is_a_lost_node(kind, autojump_clock):
    async with fake_fleet(2) as fleet:
        for bad in fleet.nodes.values():
            bad.faults.alter = fail(kind, TypeError(f"'<' not supported at {URL}"))
            assert tokens_of(await events_of(fleet.backend, REQUEST)) == answer(REQUEST)
            assert len(await fleet.backend.embed(EmbeddingRequest(inputs=((1,),)))) == 1
            bad.faults.alter = lambda _, told: told


# --- errors

OF_NODES = [kind for kind in wire.CARRIED if not issubclass(kind, errors.ClientError)]


@pytest.mark.spec("HEAD-38")
@pytest.mark.parametrize("kind", [kind for kind in OF_NODES if kind is not errors.GrammarLimitExceeded])
@pytest.mark.parametrize("call", ["place", "embed"])
async def test_a_client_never_sees_a_nodes_address_in_a_refusal(kind, call, autojump_clock):
    async with fake_fleet([URL]) as fleet:
        fleet.nodes[URL].faults.alter = fail(call, kind(f"{URL} broke"))
        with pytest.raises(errors.TlserveError) as caught:
            if call == "place":
                await events_of(fleet.backend, REQUEST)
            else:
                await fleet.backend.embed(EmbeddingRequest(inputs=((1,),)))
        assert "10.9.8.7" not in describe_error(caught.value).message


@pytest.mark.spec("HEAD-38")
@pytest.mark.parametrize("kind", [kind for kind in OF_NODES if kind not in (errors.GrammarLimitExceeded, *ORDERLY)])
async def test_a_client_never_sees_a_nodes_address_at_the_end_of_an_answer(kind, autojump_clock):
    def altered(asked, told):
        if asked != "poll":
            return told
        sessions = [attrs.evolve(each, error=kind(f"{URL} broke"), events=each.events[:2]) for each in told.sessions]
        return attrs.evolve(told, sessions=tuple(sessions))

    async with fake_fleet([URL], limits=FleetLimits(node_wait_s=1.0, room_wait_s=1.0)) as fleet:
        fleet.nodes[URL].faults.alter = altered
        with pytest.raises(errors.TlserveError) as caught:
            await events_of(fleet.backend, REQUEST)
        assert "10.9.8.7" not in describe_error(caught.value).message


@pytest.mark.spec("HEAD-38")
async def test_a_client_never_sees_the_address_of_a_node_that_is_gone(autojump_clock):
    async with fake_fleet([URL]) as fleet:
        with pytest.raises(errors.TlserveError) as caught:
            await events_of(fleet.backend, REQUEST, {4: fleet.nodes[URL].kill})
        assert "10.9.8.7" not in caught.value.message
        for call in (events_of(fleet.backend, REQUEST), fleet.backend.embed(EmbeddingRequest(inputs=((1,),)))):
            with pytest.raises(errors.TlserveError) as caught:
                await call
            assert "10.9.8.7" not in caught.value.message


@pytest.mark.spec("HEAD-38")
def test_an_error_keeps_its_status_and_its_wait():
    for kind in OF_NODES:
        error = kind("a message")
        if isinstance(error, errors.Unavailable):
            error.retry_after_s = 17
        hidden, plain = describe_error(shown(error)), describe_error(error)
        assert (hidden.status, hidden.code, hidden.retry_after_s) == (plain.status, plain.code, plain.retry_after_s)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("Overloaded", {"retry_after_s": "soon"}),
        ("Overloaded", {"retry_after_s": None}),
        ("ClientError", {"param": 7, "code": None}),
    ],
)
async def test_an_error_with_fields_of_another_type_is_a_lost_node(kind, fields):
    async def carry(name, body):
        return wire.write(wire.Reply(fault=wire.Fault(kind, "full", fields)))

    with pytest.raises(NodeLost, match="unknown error"):
        await RemoteNode("n0", carry).hello()


# --- the end of a session


@pytest.mark.spec("HEAD-13")
async def test_a_session_is_closed_on_its_node_even_if_its_answer_cannot_be_remembered(autojump_clock, monkeypatch):
    def fail_to_insert(chain):
        raise OverflowError("cannot be remembered")

    async with fake_fleet(1) as fleet:
        node = fleet.nodes["n0"]
        with pytest.raises(OverflowError):
            async with fleet.backend.generate(attrs.evolve(REQUEST, max_tokens=400)) as tokens:
                await anext(tokens)
                (member,) = fleet.backend.members
                monkeypatch.setattr(member.index, "insert", fail_to_insert)
        assert node.sessions == 0
        assert fleet.backend.admitted == 0
        assert not member.placements
