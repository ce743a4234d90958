"""The node's side of a fleet: placements over one `Backend`, for any number of heads and any transport.

Owns the rules for placements: epochs, leases, polls, the drain. It is itself a `NodeLink`, so that a head in the same process
needs no wire. Knows nothing of transports and text, and not why a head chose this node.

The nursery of `run`:

    run
    |- one task a placement (`PlacementTask.run`)     ends: its last event, its wall limit, a cancel, a newer epoch, its lease
    `- _expire_leases                                 the body: drops placements that no head acknowledges

Nothing waits for a head: a placement whose window is full stops reading its own tokens, and a poll returns the events that
exist.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Mapping, Sequence

import attrs
import numpy as np
import trio
from numpy.typing import NDArray

from tlserve import __version__
from tlserve.errors import ClientError, Draining, NoCapacity
from tlserve.fleet.link import Ack, NodeInfo, PollReply, SessionEvents, SessionKey, StalePlacement
from tlserve.fleet.node.placement_task import PlacementTask
from tlserve.fleet.node.placements import Placements
from tlserve.generation import Backend, EmbeddingRequest, GenerationRequest, TokenEvent, is_last_event

log = logging.getLogger("tlserve.fleet")

FIRST_EVENTS = 1
"""The start of the prefill and the first token: the next thing that a client sees."""

LAST_POLLS_S = 0.2
"""How long a poll waits at a draining node that has no session of its head."""


@attrs.frozen(kw_only=True)
class NodeLimits:
    """The limits of a node; times in seconds.

    `lease_s`: a session that no poll acknowledges for this long is dropped. `longest_poll_s`: the longest wait of a poll.

    `pace_s`: the least time between two replies to a head that only have tokens in the middle of answers. A reply costs both
    sides more than the tokens in it; where steps are shorter than this time (one frame of a screen), it has the tokens of
    several steps.
    """

    lease_s: float = 10.0
    longest_poll_s: float = 5.0
    pace_s: float = 0.016


class NodeService:
    """Serve one backend to heads. `slots`: requests that run at once; `refusals`: messages for features it does not support."""

    def __init__(
        self,
        backend: Backend,
        *,
        node: str,
        slots: int,
        refusals: Mapping[str, str] | None = None,
        limits: NodeLimits = NodeLimits(),
        incarnation: str | None = None,
    ) -> None:
        """`incarnation` must differ each time that the node starts; None draws it."""
        self._backend = backend
        self._node = node
        self._slots = slots
        self._refusals = dict(refusals or {})
        self._limits = limits
        self.incarnation = secrets.token_hex(8) if incarnation is None else incarnation
        self._placements = Placements()
        self._replied: dict[str, float] = {}  # when each head last got a reply
        self._news = trio.lowlevel.ParkingLot()
        self._draining = False
        self._nursery: trio.Nursery | None = None

    # --- its life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the placements until cancelled; started once requests can be placed."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                task_status.started()
                await self._expire_leases()
            finally:
                self._nursery = None

    @property
    def open_sessions(self) -> int:
        """Return the number of sessions here: those that run, and those whose last events no head has acknowledged."""
        return len(self._placements)

    async def wait_empty(self) -> None:
        """Return when no session is here; leases bound the wait for heads that have gone."""
        await self._placements.wait_none()

    # --- NodeLink

    async def hello(self) -> NodeInfo:
        """Describe this node."""
        return NodeInfo(
            node=self._node,
            incarnation=self.incarnation,
            version=__version__,
            backend=self._backend.info(),
            slots=self._slots,
            refusals=self._refusals,
            draining=self._draining,
        )

    async def place(self, key: SessionKey, request: GenerationRequest, wall_s: float) -> None:
        """Start a session; return when the backend has admitted it, or raise the backend's refusal.

        Being cancelled leaves the session here until a poll or a cancel finds it, or its lease ends.
        """
        task = self._placements.find(key)
        if task is None or task.key != key:
            task = self._start(key, request, wall_s)
        await task.wait_admitted()

    async def poll(self, head: str, acks: Sequence[Ack], wait_s: float) -> PollReply:
        """Note the acknowledgements; return the events that `head` has not acknowledged, or wait until there are some."""
        unknown = self._acknowledge(head, acks)
        rest = self._rest(head)
        if not rest and not unknown:
            rest = await self._wait_rest(head, min(max(0.0, wait_s), self._longest_wait_s(head)))
        rest = await self._at_pace(head, rest)
        return PollReply(
            incarnation=self.incarnation,
            sessions=rest,
            unknown=unknown,
            statistics=self._backend.statistics(),
            draining=self._draining,
        )

    async def cancel(self, keys: Sequence[SessionKey]) -> None:
        """End these placements; one that arrives later is refused."""
        for key in keys:
            self._placements.note_epoch(key)
            task = self._placements.find(key)
            if task is not None and task.key.epoch <= key.epoch:
                self._drop(task)

    async def embed(self, request: EmbeddingRequest) -> tuple[NDArray[np.float32], ...]:
        """Encode; raises as the backend does."""
        self._check_open()
        for tokens in request.inputs:
            self._check_ids(tokens)
        return await self._backend.embed(request)

    async def drain(self) -> None:
        """Admit nothing more; open sessions continue."""
        self.close()

    def close(self) -> None:
        """Admit nothing more, and report that to the heads."""
        self._draining = True
        self._news.unpark_all()

    # --- placements

    def _start(self, key: SessionKey, request: GenerationRequest, wall_s: float) -> PlacementTask:
        self._check_open()
        self._check_ids(request.prompt)
        self._check_ids(request.emitted)
        if self._placements.is_stale(key):
            raise StalePlacement(f"session {key.session} has a newer placement than {key.epoch}, or this one has ended")
        older = self._placements.find(key)
        if older is not None:
            self._drop(older)
        return self._begin(key, request, wall_s)

    def _begin(self, key: SessionKey, request: GenerationRequest, wall_s: float) -> PlacementTask:
        if self._nursery is None:
            raise NoCapacity("this node is starting or has ended, and runs no sessions now")
        self._placements.note_epoch(key)
        task = PlacementTask(key, trio.current_time() + self._limits.lease_s, self._news.unpark_all)
        self._placements.add(task)
        self._nursery.start_soon(self._run, task, request, max(0.0, wall_s))
        return task

    async def _run(self, task: PlacementTask, request: GenerationRequest, wall_s: float) -> None:
        await task.run(self._backend, request, wall_s)
        if task.refusal is not None:
            if self._forget(task):  # nothing was placed, and nothing has ended
                self._placements.allow_again(task.key)
        elif task.buffer.is_over:
            self._forget(task)

    def _drop(self, task: PlacementTask) -> None:
        task.drop()
        self._forget(task)

    def _forget(self, task: PlacementTask) -> bool:
        """Remove `task` from the table; return False if it has been removed already."""
        was_there = self._placements.remove(task)
        if was_there and not self._placements.of(task.key.head):
            self._replied.pop(task.key.head, None)
        return was_there

    def _check_open(self) -> None:
        if self._draining:
            raise Draining("this node is shutting down and takes no new requests")

    def _check_ids(self, tokens: Sequence[int]) -> None:
        """Refuse ids that the model does not have: a head with another model must not stop this node."""
        limit = self._backend.info().vocabulary_size
        if tokens and not (min(tokens) >= 0 and max(tokens) < limit):
            raise ClientError(f"a token id is not one of this model's {limit}")

    # --- polls

    def _acknowledge(self, head: str, acks: Sequence[Ack]) -> tuple[SessionKey, ...]:
        """Apply the acks of `head` and renew the leases; return the keys that are unknown here."""
        lease_until = trio.current_time() + self._limits.lease_s
        unknown = []
        for ack in acks:
            task = self._placements.find(ack.key) if ack.key.head == head else None
            if task is None or task.key != ack.key or not task.acknowledge(ack):
                unknown.append(ack.key)
                continue
            task.lease_until = lease_until
            if task.buffer.is_over:
                self._forget(task)
        return tuple(unknown)

    def _rest(self, head: str) -> tuple[SessionEvents, ...]:
        rests = (task.buffer.rest() for task in self._placements.of(head))
        return tuple(rest for rest in rests if rest is not None)

    def _longest_wait_s(self, head: str) -> float:
        """Return how long a poll may wait: not long at a draining node that has nothing for this head."""
        return LAST_POLLS_S if self._draining and not self._placements.of(head) else self._limits.longest_poll_s

    async def _wait_rest(self, head: str, wait_s: float) -> tuple[SessionEvents, ...]:
        """Return the events as soon as there are some, or none when the node begins to drain or the time is up."""
        rest: tuple[SessionEvents, ...] = ()
        was_draining = self._draining
        with trio.move_on_after(wait_s):
            while not rest and self._draining == was_draining:
                await self._news.park()
                rest = self._rest(head)
        return rest

    async def _at_pace(self, head: str, rest: tuple[SessionEvents, ...]) -> tuple[SessionEvents, ...]:
        """Return `rest` and the events that follow until a reply is due; urgent events are never held back."""
        due = self._replied.get(head, -math.inf) + self._limits.pace_s
        while rest and not any(map(is_urgent, rest)) and trio.current_time() < due:
            with trio.move_on_at(due):
                await self._news.park()
            rest = self._rest(head)
        if self._placements.of(head):
            self._replied[head] = trio.current_time()
        return rest

    # --- leases

    async def _expire_leases(self) -> None:
        while True:
            await self._placements.wait_any()
            if self._placements:  # a task can go before this one runs
                await trio.sleep_until(min(task.lease_until for task in self._placements))
                self._drop_overdue(trio.current_time())

    def _drop_overdue(self, now: float) -> None:
        for task in [task for task in self._placements if task.lease_until <= now]:
            log.warning("session %d of head %s is dropped: its lease has ended", task.key.session, task.key.head)
            self._drop(task)


def is_urgent(update: SessionEvents) -> bool:
    """Return whether a client waits for it: all events but tokens in the middle of an answer."""
    return (
        update.start <= FIRST_EVENTS
        or update.error is not None
        or any(not isinstance(event, TokenEvent) or is_last_event(event) for event in update.events)
    )
