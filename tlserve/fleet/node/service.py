"""The node's side of a fleet: placements over one `Backend`, for any number of heads, whatever carries their calls.

Owns who is placed here: epochs, leases, polls, the drain. It is a `NodeLink` itself, so that a head in the same process needs no
wire. Refuses to know transports, placement and text.

The nursery of `run`:

    run
    |- one task a placement (`PlacementTask.run`)     ends: its last event, its wall limit, a cancel, a newer epoch, its lease
    `- _expire_leases                                 the body: drops what no head acknowledges any more

Nothing waits for a head: a placement whose window is full stops reading its own tokens, and a poll only looks at what is there.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs
import numpy as np
import trio
from numpy.typing import NDArray

from tlserve import __version__
from tlserve.errors import ClientError, Draining, NoCapacity
from tlserve.fleet.link import Ack, NodeInfo, PollReply, SessionEvents, SessionKey, StalePlacement
from tlserve.fleet.node.placement_task import PlacementTask
from tlserve.generation import Backend, EmbeddingRequest, GenerationRequest, TokenEvent

log = logging.getLogger("tlserve.fleet")

REMEMBERED_SESSIONS = 65_536
"""Of that many sessions a node remembers the newest epoch, so that a late message of an old one starts nothing."""

FIRST_EVENTS = 1
"""The start of the prefill and the first token: the next thing that a client sees."""

LAST_POLLS_S = 0.2
"""How long a poll waits at a draining node that has no session of its head."""


@attrs.frozen(kw_only=True)
class NodeLimits:
    """`lease_s`: a session that no poll acknowledges for so long is dropped. `longest_poll_s`: the longest wait of a poll.

    `pace_s`: the least time between two replies to a head that say no more than that answers go on. A reply costs both sides
    more than the tokens in it; where steps are shorter than this, which is one picture of a screen, it has the tokens of several.
    """

    lease_s: float = 10.0
    longest_poll_s: float = 5.0
    pace_s: float = 0.016


class NodeService:
    """Serve one backend to heads. `slots`: requests that run side by side; `refusals`: what it cannot do, in words."""

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
        """`incarnation` must be another one each time that the node starts; None draws it."""
        self._backend = backend
        self._node = node
        self._slots = slots
        self._refusals = dict(refusals or {})
        self._limits = limits
        self.incarnation = secrets.token_hex(8) if incarnation is None else incarnation
        self._placements: dict[str, dict[int, PlacementTask]] = {}
        self._newest: OrderedDict[tuple[str, int], int] = OrderedDict()
        self._replied: dict[str, float] = {}
        self._news = trio.lowlevel.ParkingLot()
        self._draining = False
        self._nursery: trio.Nursery | None = None
        self._any = trio.Event()
        self._none = trio.Event()
        self._none.set()

    # --- its life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the placements until cancelled; started once they can be made."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                task_status.started()
                await self._expire_leases()
            finally:
                self._nursery = None

    @property
    def open_sessions(self) -> int:
        """Return how many sessions are here: those that run, and those whose last events no head has acknowledged."""
        return sum(map(len, self._placements.values()))

    async def wait_empty(self) -> None:
        """Return when no session is here; leases bound the wait for heads that have gone."""
        await self._none.wait()

    # --- NodeLink

    async def hello(self) -> NodeInfo:
        """Say what this node is."""
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
        """Start a session; return when the backend has admitted it, or raise what it refused it with.

        Being cancelled leaves the session here, for a poll or a cancel to find, or for its lease to end.
        """
        there = self._placements.get(key.head, {}).get(key.session)
        if there is None or there.key != key:
            there = self._start(key, request, wall_s)
        await there.wait_admitted()

    async def poll(self, head: str, acks: Sequence[Ack], wait_s: float) -> PollReply:
        """Note the acknowledgements; return what no poll of `head` has acknowledged, waiting while that is nothing."""
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
        """End these placements; one that has not come yet is refused when it comes."""
        for key in keys:
            self._remember(key)
            there = self._placements.get(key.head, {}).get(key.session)
            if there is not None and there.key.epoch <= key.epoch:
                self._drop(there)

    async def embed(self, request: EmbeddingRequest) -> tuple[NDArray[np.float32], ...]:
        """Encode; raises as the backend does."""
        self._check_open()
        for tokens in request.inputs:
            self._check_ids(tokens)
        return await self._backend.embed(request)

    async def drain(self) -> None:
        """Take nothing new; what is here goes on."""
        self.close()

    def close(self) -> None:
        """Take nothing new, and tell the heads."""
        self._draining = True
        self._news.unpark_all()

    # --- placements

    def _start(self, key: SessionKey, request: GenerationRequest, wall_s: float) -> PlacementTask:
        self._check_open()
        self._check_ids(request.prompt)
        self._check_ids(request.emitted)
        if self._newest.get((key.head, key.session), -1) >= key.epoch:
            raise StalePlacement(f"session {key.session} has a newer placement than {key.epoch}, or this one has ended")
        older = self._placements.get(key.head, {}).get(key.session)
        if older is not None:
            self._drop(older)
        return self._begin(key, request, wall_s)

    def _begin(self, key: SessionKey, request: GenerationRequest, wall_s: float) -> PlacementTask:
        if self._nursery is None:
            raise NoCapacity("this node is starting or has ended; it runs no sessions now")
        self._remember(key)
        task = PlacementTask(key, trio.current_time() + self._limits.lease_s, self._news.unpark_all)
        self._placements.setdefault(key.head, {})[key.session] = task
        self._any.set()
        if self._none.is_set():
            self._none = trio.Event()
        self._nursery.start_soon(self._run, task, request, max(0.0, wall_s))
        return task

    async def _run(self, task: PlacementTask, request: GenerationRequest, wall_s: float) -> None:
        await task.run(self._backend, request, wall_s)
        if task.refusal is not None:
            if self._forget(task):  # nothing was placed, and nothing has ended: the same key may come again
                self._newest[task.key.head, task.key.session] = task.key.epoch - 1
        elif task.buffer.is_over:
            self._forget(task)

    def _drop(self, task: PlacementTask) -> None:
        task.drop()
        self._forget(task)

    def _forget(self, task: PlacementTask) -> bool:
        """Take `task` off the table; False if it does not stand there any more."""
        mine = self._placements.get(task.key.head, {})
        if mine.get(task.key.session) is not task:
            return False
        del mine[task.key.session]
        if not mine:
            del self._placements[task.key.head]
            self._replied.pop(task.key.head, None)
        if not self._placements:
            self._any = trio.Event()
            self._none.set()
        return True

    def _remember(self, key: SessionKey) -> None:
        session = (key.head, key.session)
        self._newest[session] = max(key.epoch, self._newest.pop(session, key.epoch))
        if len(self._newest) > REMEMBERED_SESSIONS:
            self._newest.popitem(last=False)

    def _check_open(self) -> None:
        if self._draining:
            raise Draining("this node is shutting down and takes nothing new")

    def _check_ids(self, tokens: Sequence[int]) -> None:
        """Refuse ids that the model does not have: a head that serves another one must not stop this node."""
        limit = self._backend.info().vocabulary_size
        if tokens and not (min(tokens) >= 0 and max(tokens) < limit):
            raise ClientError(f"a token id is not one of this model's {limit}")

    # --- polls

    def _acknowledge(self, head: str, acks: Sequence[Ack]) -> tuple[SessionKey, ...]:
        """Apply the acks and renew the leases; return the keys that mean nothing here."""
        mine = self._placements.get(head, {})
        lease_until = trio.current_time() + self._limits.lease_s
        unknown = []
        for ack in acks:
            task = mine.get(ack.key.session)
            if task is None or task.key != ack.key or not task.acknowledge(ack):
                unknown.append(ack.key)
                continue
            task.lease_until = lease_until
            if task.buffer.is_over:
                self._forget(task)
        return tuple(unknown)

    def _rest(self, head: str) -> tuple[SessionEvents, ...]:
        rests = (task.buffer.rest() for task in self._placements.get(head, {}).values())
        return tuple(rest for rest in rests if rest is not None)

    def _longest_wait_s(self, head: str) -> float:
        """Return how long a poll may wait: not long for nothing at a node that wants to go."""
        return LAST_POLLS_S if self._draining and head not in self._placements else self._limits.longest_poll_s

    async def _wait_rest(self, head: str, wait_s: float) -> tuple[SessionEvents, ...]:
        """Return what there is as soon as there is something, or the node begins to drain, or the time is up."""
        rest: tuple[SessionEvents, ...] = ()
        was_draining = self._draining
        with trio.move_on_after(wait_s):
            while not rest and self._draining == was_draining:
                await self._news.park()
                rest = self._rest(head)
        return rest

    async def _at_pace(self, head: str, rest: tuple[SessionEvents, ...]) -> tuple[SessionEvents, ...]:
        """Return `rest` and what comes until a reply is due; nothing that somebody waits for is held."""
        due = self._replied.get(head, -math.inf) + self._limits.pace_s
        while rest and not any(map(is_urgent, rest)) and trio.current_time() < due:
            with trio.move_on_at(due):
                await self._news.park()
            rest = self._rest(head)
        if head in self._placements:
            self._replied[head] = trio.current_time()
        return rest

    # --- leases

    async def _expire_leases(self) -> None:
        while True:
            if not self._placements:
                await self._any.wait()
                continue  # it may have gone again
            await trio.sleep_until(min(task.lease_until for task in self._tasks()))
            for task in self._overdue(trio.current_time()):
                log.warning("session %d of head %s was not asked for any more", task.key.session, task.key.head)
                self._drop(task)

    def _overdue(self, now: float) -> Iterable[PlacementTask]:
        return [task for task in self._tasks() if task.lease_until <= now]

    def _tasks(self) -> Iterator[PlacementTask]:
        return (task for mine in self._placements.values() for task in mine.values())


def is_urgent(update: SessionEvents) -> bool:
    """Say whether somebody waits for it: all but tokens in the middle of an answer."""
    return (
        update.start <= FIRST_EVENTS
        or update.error is not None
        or any(not isinstance(event, TokenEvent) or event.finish is not None for event in update.events)
    )
