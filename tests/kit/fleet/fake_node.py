"""Nodes of a fleet in the event loop, at virtual times, whose links fail on request.

A `FakeNode` is the real node service over a `HashBackend`, behind a `FaultyLink`. It can be killed, started again, frozen, thawed
and drained; its link loses, doubles and delays messages. A `FakeDirectory` lists the nodes for heads, and `fake_fleet` runs nodes
and heads inside a block.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import MappingProxyType
from typing import Any

import attrs
import numpy as np
import trio
from numpy.typing import NDArray

from tests.kit.engine.hash_backend import VOCABULARY, HashBackend
from tlserve.errors import EngineFailed
from tlserve.fleet.head.backend import FleetBackend
from tlserve.fleet.head.limits import DEFAULT_LIMITS, FleetLimits
from tlserve.fleet.head.overview import FleetModel
from tlserve.fleet.link import (
    Ack,
    NodeChange,
    NodeDirectory,
    NodeGone,
    NodeInfo,
    NodeLink,
    NodeLost,
    NodeUp,
    PollReply,
    SessionKey,
)
from tlserve.fleet.node.service import NodeLimits, NodeService
from tlserve.generation import EmbeddingRequest, GenerationRequest

Ask = Callable[[NodeService], Awaitable[Any]]
"""A call of a node's service."""

MODEL = FleetModel(model_id="hash", max_context=4096, vocabulary_size=VOCABULARY, embedding_size=4)


@attrs.define
class Faults:
    """The faults of the next calls of a kind; each entry is used once. `delay_s`: the duration of every call.

    lost_request: the node never receives it. lost_reply: it does, and its answer is lost. hung: as lost, but without an error.
    Only for polls: doubled, the last reply comes again instead of a new one; gap, each session lacks its first event and its
    start says so; shifted, its start does not. Only for place: late, earlier calls come again. `alter` changes every answer: it
    gets the kind of the call and the answer, and may raise.
    """

    place: list[str] = attrs.field(factory=list)
    poll: list[str] = attrs.field(factory=list)
    cancel: list[str] = attrs.field(factory=list)
    embed: list[str] = attrs.field(factory=list)
    hello: list[str] = attrs.field(factory=list)
    delay_s: float = 0.0
    alter: Callable[[str, Any], Any] = lambda _, answer: answer

    def next(self, kind: str) -> str:
        waiting = getattr(self, kind)
        return waiting.pop(0) if waiting else ""


class FaultyLink:
    """The link to the current service of `node`; a call that it cannot carry fails at once."""

    def __init__(self, node: FakeNode) -> None:
        self._node = node
        self._scopes: set[trio.CancelScope] = set()
        self._last_poll: PollReply | None = None
        self.placed: list[tuple[SessionKey, GenerationRequest, float]] = []
        self.calls: list[str] = []

    def break_all(self) -> None:
        """End every open call as a closed connection does."""
        for scope in self._scopes:
            scope.cancel()

    async def hello(self) -> NodeInfo:
        return await self._carry("hello", lambda service: service.hello())

    async def place(self, key: SessionKey, request: GenerationRequest, wall_s: float) -> None:
        self.placed.append((key, request, wall_s))
        await self._carry("place", lambda service: service.place(key, request, wall_s))

    async def poll(self, head: str, acks: Sequence[Ack], wait_s: float) -> PollReply:
        return await self._carry("poll", lambda service: service.poll(head, acks, wait_s))

    async def cancel(self, keys: Sequence[SessionKey]) -> None:
        await self._carry("cancel", lambda service: service.cancel(keys))

    async def embed(self, request: EmbeddingRequest) -> tuple[NDArray[np.float32], ...]:
        return await self._carry("embed", lambda service: service.embed(request))

    async def drain(self) -> None:
        await self._carry("drain", lambda service: service.drain())

    async def _carry(self, kind: str, ask: Ask) -> Any:
        await trio.lowlevel.checkpoint()
        self.calls.append(kind)
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                return await self._carry_one(kind, ask)
            finally:
                self._scopes.discard(scope)
        raise NodeLost(f"the connection to {self._node.name} broke")

    async def _carry_one(self, kind: str, ask: Ask) -> Any:
        fault = self._node.faults.next(kind) if kind != "drain" else ""
        if self._node.faults.delay_s:
            await trio.sleep(self._node.faults.delay_s)
        if fault == "lost_request":
            raise NodeLost("the request was lost")
        if fault == "doubled" and self._last_poll is not None:
            return self._last_poll
        if fault == "late":
            await self._repeat_old_placements()
        reply = await self._ask_node(ask)
        reply = self._node.faults.alter(kind, reply)
        if kind == "poll":
            reply = without_first_events(reply, int(fault == "gap")) if fault in ("gap", "shifted") else reply
            self._last_poll = reply
        if fault == "lost_reply":
            raise NodeLost("the reply was lost")
        if fault == "hung":
            await trio.sleep_forever()
        return reply

    async def _ask_node(self, ask: Ask) -> Any:
        await self._node.thawed.wait()
        service = self._node.service
        if service is None:
            raise NodeLost(f"nothing listens at {self._node.name}")
        reply = await ask(service)
        await self._node.thawed.wait()
        return reply

    async def _repeat_old_placements(self) -> None:
        """Repeat every message of a placement, as a network can."""
        for key, request, wall_s in self.placed[:-1]:
            try:
                await self._ask_node(partial(_place_again, call=(key, request, wall_s)))
            except NodeLost:
                continue


def without_first_events(reply: PollReply, told: int) -> PollReply:
    """Return the reply of a node that has lost the first event of every session; with `told` 1 it still counts the event."""
    sessions = tuple(
        attrs.evolve(update, start=update.start + told, events=update.events[1:]) for update in reply.sessions
    )
    return attrs.evolve(reply, sessions=sessions)


async def _place_again(service: NodeService, *, call: tuple[SessionKey, GenerationRequest, float]) -> None:
    await service.place(*call)


class FakeNode:
    """One node, which can be started several times; `settings` are those of `HashBackend`."""

    def __init__(
        self, name: str, *, lease_s: float = 10.0, make_backend: Callable[..., Any] = HashBackend, **settings: Any
    ) -> None:
        self.name = name
        self.settings = settings
        self._make_backend = make_backend
        self.faults = Faults()
        self.link = FaultyLink(self)
        self.thawed = trio.Event()
        self.thawed.set()
        self.service: NodeService | None = None
        self.backend = make_backend(**settings)  # of its last life
        self.refusals: dict[str, str] = {}
        self.lives = 0
        self.requests: list[GenerationRequest] = []  # of all its lives
        self._lease_s = lease_s
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None

    async def start(self, nursery: trio.Nursery | None = None) -> None:
        """Start, with a new incarnation."""
        self._nursery = nursery or self._nursery
        assert self._nursery is not None
        await self._nursery.start(self._live)

    async def _live(self, *, task_status: trio.TaskStatus[None]) -> None:
        self.lives += 1
        self._scope = trio.CancelScope()
        self.backend = self._make_backend(**self.settings)
        self.backend.requests = self.requests
        service = NodeService(
            self.backend,
            node=self.name,
            slots=self.backend.slots,
            refusals=self.refusals,
            limits=NodeLimits(lease_s=self._lease_s),
            incarnation=f"{self.name}.{self.lives}",
        )
        with self._scope:
            try:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self.backend.run)
                    await nursery.start(service.run)
                    self.service = service
                    task_status.started()
            except* EngineFailed:  # a node whose engine has failed ends, as a server does
                self.service = None
                self.link.break_all()

    @property
    def is_alive(self) -> bool:
        return self.service is not None

    # --- faults

    def kill(self) -> None:
        """Be killed, in the middle of any work."""
        self.service = None
        self._scope.cancel()
        self.thaw()
        self.link.break_all()

    async def restart(self) -> None:
        self.kill()
        await self.start()

    def freeze(self) -> None:
        """Freeze, with all connections open."""
        if self.thawed.is_set():
            self.thawed = trio.Event()
        self.backend.hold()

    def thaw(self) -> None:
        self.thawed.set()
        self.backend.go_on()

    def hang_engine(self) -> None:
        """Freeze the engine behind a service that answers."""
        self.backend.hold()

    def fail_engine(self) -> None:
        """Let the engine die and report it; the service continues."""
        self.backend.fail()

    @property
    def sessions(self) -> int:
        return 0 if self.service is None else self.service.open_sessions


class FakeDirectory:
    """Reports added nodes and their changes to each head."""

    def __init__(self, links: Mapping[str, NodeLink] = MappingProxyType({})) -> None:
        """`links`: by the names of their nodes."""
        self.known = dict(links)
        self._listeners: list[trio.MemorySendChannel[NodeChange]] = []

    async def changes(self) -> AsyncIterator[NodeChange]:
        send, receive = trio.open_memory_channel[NodeChange](float("inf"))
        self._listeners.append(send)
        for name, link in list(self.known.items()):
            yield NodeUp(name, link)
        async with receive:
            async for change in receive:
                yield change

    def up(self, node: FakeNode) -> None:
        self.known[node.name] = node.link
        self._tell(NodeUp(node.name, node.link))

    def gone(self, name: str, reason: str = "was taken from the list") -> None:
        del self.known[name]
        self._tell(NodeGone(name, reason))

    def _tell(self, change: NodeChange) -> None:
        for listener in self._listeners:
            listener.send_nowait(change)


@attrs.define
class FakeFleet:
    """Nodes by name, and the heads over them."""

    nodes: dict[str, FakeNode]
    directory: FakeDirectory
    heads: list[FleetBackend]
    nursery: trio.Nursery

    @property
    def backend(self) -> FleetBackend:
        return self.heads[0]

    def node_of(self, request_id: str) -> FakeNode | None:
        """Return the node that has a request now, by the request's name, or None."""
        for node in self.nodes.values():
            if node.service is None:
                continue
            for sequence in (*node.backend.running, *node.backend.waiting):
                if sequence.request.request_id == request_id:
                    return node
        return None

    def placements_of(self, request_id: str) -> int:
        """Return how often a request was admitted, by all nodes together."""
        return sum(request.request_id == request_id for node in self.nodes.values() for request in node.requests)

    async def add(self, name: str, **settings: Any) -> FakeNode:
        node = FakeNode(name, **settings)
        await node.start(self.nursery)
        self.nodes[name] = node
        self.directory.up(node)
        return node


@asynccontextmanager
async def fake_fleet(
    nodes: int | Sequence[str] = 2,
    *,
    heads: int = 1,
    limits: FleetLimits = DEFAULT_LIMITS,
    model: FleetModel = MODEL,
    wait_ready: bool = True,
    lease_s: float = 10.0,
    make_backend: Callable[..., Any] = HashBackend,
    **settings: Any,
) -> AsyncIterator[FakeFleet]:
    """Run `nodes` nodes and `heads` heads over them for the block."""
    names = [f"n{number}" for number in range(nodes)] if isinstance(nodes, int) else nodes
    made = {name: FakeNode(name, lease_s=lease_s, make_backend=make_backend, **settings) for name in names}
    async with trio.open_nursery() as nursery:
        for node in made.values():
            await node.start(nursery)
        directory = FakeDirectory({name: node.link for name, node in made.items()})
        backends = [FleetBackend(directory, model, limits, head_id=f"h{number}") for number in range(heads)]
        for backend in backends:
            await nursery.start(backend.run)
            if wait_ready:
                await backend.wait_ready(len(made))
        yield FakeFleet(made, directory, backends, nursery)
        nursery.cancel_scope.cancel()


def _keeps_the_seam(node: FakeNode) -> tuple[NodeLink, NodeDirectory]:
    """Let the type checker compare."""
    return node.link, FakeDirectory()
