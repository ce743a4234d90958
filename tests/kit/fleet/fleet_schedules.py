"""Random schedules of requests and faults on a fake fleet, and the properties of each; a seed replays its schedule exactly.

The truth is the answer that the scripted engine gives in process (`hash_backend.answer`). If one node is never harmed (the
survivor), every answer that has begun must be complete; else it is a beginning of the truth and one stated error.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import attrs
import trio

from tests.kit.engine.hash_backend import VOCABULARY, answer, prompt_logprobs
from tests.kit.fleet.fake_node import FakeFleet, FakeNode, fake_fleet
from tests.kit.virtual_time import run_seeded
from tlserve.errors import (
    DeadlineExceeded,
    DrainCut,
    Draining,
    EngineFailed,
    NoCapacity,
    Overloaded,
    TlserveError,
)
from tlserve.fleet.head.limits import FleetLimits
from tlserve.fleet.link import NodeLost, NoNode
from tlserve.generation import GenerationEvent, GenerationRequest, PrefillStarted, Progress, PromptLogprobs, TokenEvent
from tlserve.sampling_params import SamplingParams

LOSS = (NodeLost, NoNode, EngineFailed, NoCapacity, Overloaded, Draining, DrainCut)
LINK_FAULTS = {
    "place": ("lost_request", "lost_reply", "hung", "late"),
    "poll": ("lost_request", "lost_reply", "hung", "doubled", "gap", "shifted", "shifted"),
    "cancel": ("lost_request", "lost_reply"),
    "hello": ("lost_reply", "hung"),
}
FOR_EVER_S = 10_000.0
HARM = ("kill", "kill", "restart", "restart", "freeze", "hang_engine", "fail_engine", "drain", "remove", "relink")


@attrs.frozen
class Client:
    """A request, its time and its head; the client reads with pauses of `pause_s` and leaves after `leaves_after` events."""

    request: GenerationRequest
    at: float
    head: int
    pause_s: float = 0.0
    leaves_after: int | None = None


@attrs.frozen
class Fault:
    at: float
    node: str
    kind: str
    lasts_s: float = 0.0
    link: tuple[str, str] = ("", "")


@attrs.define
class Outcome:
    """The events of one client, with their times."""

    events: list[GenerationEvent] = attrs.field(factory=list)
    error: TlserveError | None = None
    trace: list[tuple[float, object]] = attrs.field(factory=list)
    left: bool = False


class FleetSchedule:
    """The schedule of `seed`."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._rng = rng = random.Random(seed)
        self.nodes = [f"n{number}" for number in range(rng.randint(2, 4))]
        self.heads = rng.choice((1, 1, 2))
        self.survivor = "n0" if rng.random() < 0.7 else None
        self.settings: dict[str, Any] = {
            "slots": rng.randint(2, 8),
            "queue": rng.randint(0, 4),
            "prefill_tokens": rng.choice((8, 64, 256)),
            "step_s": rng.choice((0.02, 0.05)),
        }
        self.delays_s = [rng.choice((0.0, 0.0, 0.005, 0.1)) for _ in self.nodes]
        self.limits = FleetLimits(
            moves=99 if self.survivor else rng.randint(0, 3),
            wall_s=600.0 if self.survivor or rng.random() < 0.7 else rng.uniform(0.3, 3),
            window_events=rng.choice((1, 4, 64)),
            drain_grace_s=rng.choice((0.1, 10.0)),
        )
        beginnings = [self._ids(rng.randint(1, 50)) for _ in range(2)]
        self.clients = [self._client(beginnings) for _ in range(rng.randint(1, 6))]
        self.faults = sorted((self._fault() for _ in range(rng.randint(0, 7))), key=lambda fault: fault.at)
        self.outcomes = [Outcome() for _ in self.clients]
        self.placements: list[int] = []
        self.wrong: list[str] = []

    def play(self) -> FleetSchedule:
        """Run it; `wrong` then has the violations."""
        run_seeded(self._run, seed=self.seed)
        return self

    # --- what is drawn

    def _ids(self, count: int) -> tuple[int, ...]:
        return tuple(self._rng.randrange(VOCABULARY) for _ in range(count))

    def _client(self, beginnings: Sequence[tuple[int, ...]]) -> Client:
        rng = self._rng
        request = GenerationRequest(
            prompt=rng.choice(beginnings) + self._ids(rng.randint(1, 20)),
            max_tokens=rng.randint(1, 60),
            seed=rng.randrange(1 << 32),
            sampling=rng.choice(
                (SamplingParams(), SamplingParams(presence_penalty=0.5), SamplingParams(temperature=0))
            ),
            stop_ids=frozenset(self._ids(rng.choice((0, 0, 4)))),
            min_tokens=rng.choice((0, 0, 5)),
            logprobs=rng.choice((None, 0, 2)),
            prompt_logprobs=rng.choice((None, None, 1)),
            cache_salt=rng.choice(("", "", "salt")),
            progress=rng.random() < 0.3,
            request_id=f"r{rng.randrange(1 << 32)}",
        )
        return Client(
            request,
            at=rng.choice((0.0, rng.uniform(0, 2))),
            head=rng.randrange(self.heads),
            pause_s=rng.choice((0.0, 0.0, rng.uniform(0, 0.3))),
            leaves_after=rng.choice((None, None, None, rng.randint(0, 20))),
        )

    def _fault(self) -> Fault:
        rng = self._rng
        at, node, lasts_s = rng.uniform(0, 3), rng.choice(self.nodes), rng.choice((0.3, 1.0, 4.0, 15.0, FOR_EVER_S))
        if node == self.survivor or rng.random() < 0.4:
            kind = rng.choice(("place", "poll", "poll", "poll", "cancel", "hello"))
            return Fault(at, node, "link", link=(kind, rng.choice(LINK_FAULTS[kind])))
        return Fault(at, node, rng.choice(HARM), lasts_s)

    # --- the run

    async def _run(self) -> None:
        async with fake_fleet(self.nodes, heads=self.heads, limits=self.limits, **self.settings) as fleet:
            start = trio.current_time()
            for node, delay_s in zip(fleet.nodes.values(), self.delays_s, strict=True):
                node.faults.delay_s = delay_s
            async with trio.open_nursery() as nursery:
                for fault in self.faults:
                    nursery.start_soon(self._harm, fleet, fault, start)
                async with trio.open_nursery() as clients:
                    for client, outcome in zip(self.clients, self.outcomes, strict=True):
                        clients.start_soon(self._ask, fleet, client, outcome, start)
                nursery.cancel_scope.cancel()
            self._check_answers()
            self.placements = [fleet.placements_of(client.request.request_id) for client in self.clients]
            await self._check_nothing_stays(fleet)

    async def _ask(self, fleet: FakeFleet, client: Client, outcome: Outcome, start: float) -> None:
        await trio.sleep_until(start + client.at)
        try:
            async with fleet.heads[client.head].generate(client.request) as tokens:
                await self._read(tokens, client, outcome, start)
        except TlserveError as error:
            outcome.error = error
            outcome.trace.append((round(trio.current_time() - start, 6), type(error).__name__))

    async def _read(
        self, tokens: AsyncIterator[Sequence[GenerationEvent]], client: Client, outcome: Outcome, start: float
    ) -> None:
        while not outcome.left:
            if client.leaves_after is not None and len(outcome.events) >= client.leaves_after:
                outcome.left = True
                return
            try:
                batch = await anext(tokens)
            except StopAsyncIteration:
                return
            outcome.events += batch
            outcome.trace.append((round(trio.current_time() - start, 6), len(outcome.events)))
            await trio.sleep(client.pause_s)

    async def _harm(self, fleet: FakeFleet, fault: Fault, start: float) -> None:
        await trio.sleep_until(start + fault.at)
        node = fleet.nodes[fault.node]
        if fault.kind == "link":
            getattr(node.faults, fault.link[0]).append(fault.link[1])
        elif node.is_alive:
            await getattr(self, f"_{fault.kind}")(fleet, node, fault.lasts_s)

    async def _kill(self, fleet: FakeFleet, node: FakeNode, lasts_s: float) -> None:
        node.kill()
        await trio.sleep(lasts_s)
        if not node.is_alive:
            await node.start()

    async def _restart(self, fleet: FakeFleet, node: FakeNode, lasts_s: float) -> None:
        await node.restart()

    async def _freeze(self, fleet: FakeFleet, node: FakeNode, lasts_s: float) -> None:
        node.freeze()
        await trio.sleep(lasts_s)
        node.thaw()

    async def _hang_engine(self, fleet: FakeFleet, node: FakeNode, lasts_s: float) -> None:
        node.hang_engine()
        await trio.sleep(lasts_s)
        node.thaw()

    async def _fail_engine(self, fleet: FakeFleet, node: FakeNode, lasts_s: float) -> None:
        node.fail_engine()
        await trio.sleep(lasts_s)
        if node.is_alive:
            await node.restart()

    async def _drain(self, fleet: FakeFleet, node: FakeNode, lasts_s: float) -> None:
        if node.service is not None:
            await node.service.drain()
        await trio.sleep(lasts_s)
        if node.is_alive:
            await node.restart()

    async def _remove(self, fleet: FakeFleet, node: FakeNode, lasts_s: float) -> None:
        if node.name not in fleet.directory.known:
            return
        fleet.directory.gone(node.name)
        await trio.sleep(lasts_s)
        fleet.directory.up(node)

    async def _relink(self, fleet: FakeFleet, node: FakeNode, lasts_s: float) -> None:
        if node.name in fleet.directory.known:
            fleet.directory.up(node)

    # --- what must hold

    def _check_answers(self) -> None:
        for client, outcome in zip(self.clients, self.outcomes, strict=True):
            for what in faults_of(client, outcome, must_finish=self.survivor is not None):
                self.wrong.append(f"{client.request.request_id}: {what}")

    async def _check_nothing_stays(self, fleet: FakeFleet) -> None:
        """After the leases nothing of any request is left on a node or in a head."""
        for node in fleet.nodes.values():
            node.thaw()
        await trio.sleep(15)
        for node in fleet.nodes.values():
            if node.is_alive and (node.sessions or node.backend.running or node.backend.waiting):
                self.wrong.append(f"{node.name} still has {node.sessions} sessions")
        for head in fleet.heads:
            if head.admitted or any(member.placements or member.farewells or member.calls for member in head.members):
                self.wrong.append("a head still has sessions")


def faults_of(client: Client, outcome: Outcome, *, must_finish: bool) -> Iterator[str]:
    """Yield the faults of the events of a client."""
    truth = answer(client.request)
    tokens = [event for event in outcome.events if isinstance(event, TokenEvent)]
    if tokens != truth[: len(tokens)]:
        yield f"its tokens are not the beginning of the truth after {len(tokens)}"
    yield from faults_before_tokens(client.request, outcome)
    if outcome.left:
        return
    if outcome.error is None and tokens != truth:
        yield f"it ended without an error after {len(tokens)} of {len(truth)} tokens"
    if outcome.error is not None:
        if not isinstance(outcome.error, (*LOSS, DeadlineExceeded)):
            yield f"it ended with {outcome.error!r}"
        if tokens == truth:
            yield f"it ended with {outcome.error!r} after its last token"
        if must_finish and outcome.events:
            yield f"it was cut after {len(tokens)} tokens although a node was never harmed: {outcome.error!r}"


def faults_before_tokens(request: GenerationRequest, outcome: Outcome) -> Iterator[str]:
    """Yield the faults of the events before the first token: each comes once, in order."""
    head = [event for event in outcome.events if not isinstance(event, TokenEvent)]
    if outcome.events and any(isinstance(event, TokenEvent) for event in outcome.events[: len(head)]):
        yield "something came after the first token that comes before it"
    starts = [event for event in head if isinstance(event, PrefillStarted)]
    if len(starts) > 1 or (len(head) < len(outcome.events) and not starts):
        yield f"the prefill started {len(starts)} times"
    before = head[: head.index(starts[0])] if starts else head
    if any(not isinstance(event, Progress) for event in before):
        yield "something came before the prefill started"
    told = [event for event in head if isinstance(event, PromptLogprobs)]
    flat = [token for event in told for token in event.tokens]
    truth = [token for event in prompt_logprobs(request) for token in event.tokens]
    if request.prompt_logprobs is None and told:
        yield "prompt log-probabilities came that nobody asked for"
    if flat != truth[: len(flat)] or (
        request.prompt_logprobs is not None and len(head) < len(outcome.events) and flat != truth
    ):
        yield f"{len(flat)} of {len(truth)} prompt log-probabilities were received, or wrong ones"
    done = [event.done for event in head if isinstance(event, Progress) and event.ahead is None]
    if done != sorted(set(done)):
        yield f"the progress decreased: {done}"
