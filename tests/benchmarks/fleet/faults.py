"""How long clients wait when a node is killed or hangs: measured inside a head, session by session.

Owns the sessions, the fault, and the times after it. There is no HTTP server: the head is a `FleetBackend` in this process, and
its nodes are processes.
"""

from __future__ import annotations

import math
import os
import random
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import attrs
import trio

from tests.benchmarks.fleet.setup import FleetProcess
from tlserve.errors import ServerFault
from tlserve.fleet.head.backend import FleetBackend
from tlserve.fleet.head.overview import FleetModel
from tlserve.fleet.http.link import HttpLink
from tlserve.fleet.http.static_directory import StaticDirectory
from tlserve.generation import GenerationRequest, TokenEvent

PROMPT_TOKENS = 64
ANY_VOCABULARY = 1 << 31
"""The nodes serve one model of this run: its ids need no check."""

BEFORE_TOKENS = 16
"""Tokens that each session has when the fault comes."""

AFTER_TOKENS = 128
_LOOK_EVERY_S = 0.001


@attrs.frozen(kw_only=True)
class MeasuredFault:
    """One fault; all times are from the signal on.

    `noticed_ms`: until the head knew. `placed_ms`: until another node had the session. `next_token_ms`: until the session
    continued, including the prefill on the other node. `prefill_ms`: the time that the same number of new sessions of that
    length, placed at once on the same nodes, wait for their first tokens: that prefill alone.
    """

    noticed_ms: float
    placed_ms: Sequence[float]
    next_token_ms: Sequence[float]
    prefill_ms: Sequence[float]


@attrs.define(eq=False)
class _Watched:
    """A session: its node when the fault came, when another node had it, and when it continued; in trio's seconds."""

    request: GenerationRequest
    tokens: int = 0
    first_at: float = math.inf
    node: str = ""
    placed_at: float = math.inf
    next_at: float = math.inf
    has_enough: trio.Event = attrs.field(factory=trio.Event)


async def measure_fault(
    model: str, nodes: Sequence[FleetProcess], number: signal.Signals, streams: int
) -> MeasuredFault:
    """Send signal `number` to the node with the most of `streams` sessions; all sessions are read to their ends."""
    async with _head(model, nodes) as backend:
        watched = [_Watched(_request(backend, f"before-{index}", PROMPT_TOKENS)) for index in range(streams)]
        async with trio.open_nursery() as nursery:
            for session in watched:
                nursery.start_soon(_follow, backend, session)
            for session in watched:
                await session.has_enough.wait()
            struck_at = trio.current_time()
            noticed_at = await _strike(backend, nodes, number, watched)
        moved = [session for session in watched if session.next_at < math.inf]
        if not moved:
            raise ServerFault("no answer was running when the fault came: this model ends them too soon")
        fresh = await _prefill_at_once(backend, len(moved), PROMPT_TOKENS + BEFORE_TOKENS)
    return MeasuredFault(
        noticed_ms=1000 * (noticed_at - struck_at),
        placed_ms=[1000 * (session.placed_at - struck_at) for session in moved],
        next_token_ms=[1000 * (session.next_at - struck_at) for session in moved],
        prefill_ms=fresh,
    )


async def _strike(
    backend: FleetBackend, nodes: Sequence[FleetProcess], number: signal.Signals, watched: Sequence[_Watched]
) -> float:
    """Send the signal, wait until every session is on another node, and return the time at which the head noticed."""
    for session in watched:
        session.node = backend.node_of(session.request.request_id)
    victim = max(nodes, key=lambda node: sum(session.node == node.url for session in watched))
    os.kill(victim.pid, number)
    hit = [session for session in watched if session.node == victim.url]
    noticed_at = math.inf
    while any(session.placed_at == math.inf for session in hit):
        now = trio.current_time()
        if noticed_at == math.inf and _is_lost(backend, victim.url):
            noticed_at = now
        for session in hit:
            if session.placed_at == math.inf and backend.node_of(session.request.request_id) not in ("", victim.url):
                session.placed_at = now
        await trio.sleep(_LOOK_EVERY_S)
    return noticed_at


def _is_lost(backend: FleetBackend, node: str) -> bool:
    return any(member.node == node and member.absence for member in backend.members)


async def _follow(backend: FleetBackend, session: _Watched) -> None:
    """Read one session to its end, and note when it continues on another node."""
    async with backend.generate(session.request) as tokens:
        async for batch in tokens:
            session.tokens += sum(isinstance(event, TokenEvent) for event in batch)
            if session.tokens and session.first_at == math.inf:
                session.first_at = trio.current_time()
            if session.tokens >= BEFORE_TOKENS:
                session.has_enough.set()
            if session.placed_at < math.inf and session.next_at == math.inf:
                session.next_at = trio.current_time()


async def _prefill_at_once(backend: FleetBackend, count: int, prompt_tokens: int) -> list[float]:
    """Return the milliseconds that `count` new sessions wait for their first tokens."""
    fresh = [_Watched(_request(backend, f"after-{index}", prompt_tokens)) for index in range(count)]
    began_at = trio.current_time()
    async with trio.open_nursery() as nursery:
        for session in fresh:
            nursery.start_soon(_follow, backend, session)
    return [1000 * (session.first_at - began_at) for session in fresh]


def _request(backend: FleetBackend, request_id: str, prompt_tokens: int) -> GenerationRequest:
    source, vocabulary = random.SystemRandom(), backend.info().vocabulary_size
    return GenerationRequest(
        prompt=tuple(source.randrange(vocabulary) for _ in range(prompt_tokens)),
        max_tokens=BEFORE_TOKENS + AFTER_TOKENS,
        seed=source.getrandbits(64),
        request_id=request_id,
    )


@asynccontextmanager
async def _head(model: str, nodes: Sequence[FleetProcess]) -> AsyncIterator[FleetBackend]:
    """Run a head in this process over `nodes`; all of them are ready when the block begins."""
    sizes = FleetModel(model_id=model, max_context=0, vocabulary_size=ANY_VOCABULARY, embedding_size=0)
    directory = StaticDirectory((node.url for node in nodes), HttpLink)
    backend = FleetBackend(directory, sizes)
    async with trio.open_nursery() as nursery:
        await nursery.start(backend.run)
        await backend.wait_ready(len(nodes))
        yield backend
        backend.stop()
        await directory.aclose()
