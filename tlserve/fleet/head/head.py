"""The head of a fleet: its nodes, the open sessions, and what happens to them when a node leaves.

Owns the nursery, the membership, and three endings: of a node (its sessions are placed again), of a session that took too long,
and of a session's time on a draining node. `tlserve.fleet.head.placer` chooses the nodes. Knows no clients.

The nursery of `run`:

    run
    |- _watch_directory          nodes come and go
    |- NodeWatch.run, one a node ends: the node is gone, or its link is replaced
    |- _cancel, sometimes        ends sessions on a node that should not have them; takes a second at most
    `- _watch_time               the body: wall limits, stalls, drains
"""

from __future__ import annotations

import itertools
import logging
import secrets
from collections.abc import Sequence

import trio

from tlserve.errors import TlserveError
from tlserve.fleet.head.limits import FleetLimits
from tlserve.fleet.head.member import Member, PlacedSession
from tlserve.fleet.head.node_watch import NodeWatch
from tlserve.fleet.head.overview import FleetModel, add, group_of, without_gauges
from tlserve.fleet.head.placer import Placer
from tlserve.fleet.head.polls import apply_reply
from tlserve.fleet.head.session import Session, wall_passed
from tlserve.fleet.link import Ack, NodeDirectory, NodeGone, NodeInfo, NodeUp, PollReply, SessionKey
from tlserve.generation import EngineStatistics, GenerationRequest

log = logging.getLogger("tlserve.fleet")

REMEMBERED_NODES = 256
"""Nodes that have left whose counters are kept separately, in case they come back."""


class Head:
    """The sessions of one process over the nodes of `directory`. `head_id` is never used again; None draws it."""

    def __init__(
        self, directory: NodeDirectory, model: FleetModel, limits: FleetLimits, head_id: str | None = None
    ) -> None:
        self.id = secrets.token_hex(8) if head_id is None else head_id
        self.members: dict[str, Member] = {}
        self.sessions: dict[int, Session] = {}
        self.retired = EngineStatistics()
        self.losses = 0
        self.placer = Placer(self.id, model, self.members, limits, self.cancel_soon)
        self._directory = directory
        self._model = model
        self._limits = limits
        self._numbers = itertools.count(1)
        self._watches: dict[str, trio.CancelScope] = {}
        self._nursery: trio.Nursery | None = None

    @property
    def is_running(self) -> bool:
        """Return whether it watches its nodes."""
        return self._nursery is not None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch the nodes until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._watch_directory)
            try:
                task_status.started()
                await self._watch_time()
            finally:
                self._nursery = None

    # --- nodes

    async def _watch_directory(self) -> None:
        async for change in self._directory.changes():
            if isinstance(change, NodeGone):
                self._remove(change)
            else:
                self._add(change)

    def _add(self, change: NodeUp) -> None:
        """Add a node, or give it a new link: if its incarnation is the same, its sessions continue."""
        if self._nursery is None:
            return
        self._end_watch(change.node)
        member = self.members.setdefault(change.node, Member(change.node, change.link, self._limits))
        member.link, member.is_gone = change.link, False
        self._watches[change.node] = scope = trio.CancelScope()
        self._nursery.start_soon(self._watch, member, scope)

    async def _watch(self, member: Member, scope: trio.CancelScope) -> None:
        watch = NodeWatch(
            self.id,
            member,
            on_hello=lambda info: self._meet(member, info),
            on_reply=lambda acks, reply: self._apply_reply(member, acks, reply),
            on_loss=lambda reason: self.lose(member, reason),
        )
        with scope:
            await watch.run()

    def _end_watch(self, node: str) -> None:
        scope = self._watches.pop(node, None)
        if scope is not None:
            scope.cancel()

    def _remove(self, change: NodeGone) -> None:
        self._end_watch(change.node)
        member = self.members.get(change.node)
        if member is not None:
            self.lose(member, change.reason)
            member.is_gone = True
            self._retire_oldest()

    def _retire_oldest(self) -> None:
        gone = [node for node, member in self.members.items() if member.is_gone]
        for node in gone[: max(0, len(gone) - REMEMBERED_NODES)]:
            self._retire(self.members.pop(node))

    def _retire(self, member: Member) -> None:
        self.retired = add(self.retired, without_gauges(member.statistics))

    def _meet(self, member: Member, info: NodeInfo) -> None:
        if member.info is not None and member.info.incarnation != info.incarnation:
            self.lose(member, "has restarted")
            self._retire(member)
        if member.absence:
            log.info("node %s has joined: %s, numerics %s", member.node, info.backend.model_id, info.numerics)
        member.meet(info, trio.current_time())
        self.placer.announce_change()

    def _apply_reply(self, member: Member, acks: Sequence[Ack], reply: PollReply) -> None:
        was_out = bool(member.why_not(self._model.model_id))
        strays = apply_reply(member, acks, reply, trio.current_time())
        if strays:
            self._cancel_soon(member, strays)
        if was_out:
            self.placer.announce_change()

    def lose(self, member: Member, reason: str) -> None:
        """Note that a node cannot be reached: its sessions have to be placed again."""
        if not member.absence:
            log.warning("node %s is lost: %s", member.node, reason)
            self.losses += 1
        member.absence = reason
        member.farewells.clear()  # if it comes back, it sends the events again, and its session is cancelled
        self._take_off(member, list(member.placements.values()), f"node {member.node} was lost: {reason}")
        for scope in member.calls.values():
            scope.cancel()

    def _take_off(
        self, member: Member, placements: Sequence[PlacedSession], reason: str, *, is_fault: bool = True
    ) -> None:
        for placement in placements:
            del member.placements[placement.key]
            if placement.confirmed:  # otherwise the task that places it gets the error
                placement.lose(reason, is_fault=is_fault)

    # --- sessions

    def open_session(self, request: GenerationRequest) -> Session:
        """Return a new session, not placed yet; its wall limit begins."""
        wall_s = self._limits.wall_s
        deadline = trio.current_time() + wall_s
        session = Session(next(self._numbers), request, deadline, wall_s, self._model.vocabulary_size)
        self.sessions[session.number] = session
        return session

    async def close_session(self, session: Session) -> None:
        """Let its node forget it, and wait a second at most for that."""
        del self.sessions[session.number]
        placement = session.placement
        if placement is not None:
            session.placement = None
            placement.member.placements.pop(placement.key, None)
            with trio.CancelScope(shield=True):
                await self._cancel(placement.member, [placement.key])

    def end(self, session: Session, error: TlserveError) -> None:
        """End it with `error`, on whatever node it is."""
        placement = session.placement
        session.fail(error)
        if placement is not None:
            placement.member.placements.pop(placement.key, None)
            self.cancel_soon(placement.member, placement.key)

    def cancel_soon(self, member: Member, key: SessionKey) -> None:
        """Let a node end a session that it may have, without waiting for it."""
        self._cancel_soon(member, [key])

    def _cancel_soon(self, member: Member, keys: Sequence[SessionKey]) -> None:
        if self._nursery is not None and not member.absence:
            self._nursery.start_soon(self._cancel, member, keys)

    async def _cancel(self, member: Member, keys: Sequence[SessionKey]) -> None:
        """Let a node end sessions; if the call does not arrive, their leases end there."""
        with trio.move_on_after(self._limits.cancel_s):
            try:
                await member.link.cancel(keys)
            except Exception as error:
                log.debug(
                    "the call to end sessions did not reach node %s (%d of them): %s", member.node, len(keys), error
                )

    # --- time

    async def _watch_time(self) -> None:
        while True:
            await trio.sleep(self._limits.tick_s)
            now = trio.current_time()
            for session in [session for session in self.sessions.values() if session.deadline <= now]:
                self.end(session, wall_passed(self._limits.wall_s))
            for member in list(self.members.values()):
                self._watch_member(member, now)

    def _watch_member(self, member: Member, now: float) -> None:
        if member.absence:
            return
        if member.has_stalled(now):
            log.warning("node %s answers, but its engine has stalled", member.node)
            member.stall(now)
            self._leave(member, list(member.placements.values()), f"the engine of node {member.node} stalled")
        elif member.draining_since is not None and now - member.draining_since >= self._limits.drain_grace_s:
            self._leave_draining(member)

    def _leave(
        self, member: Member, placements: Sequence[PlacedSession], reason: str, *, is_fault: bool = True
    ) -> None:
        """Take sessions off a node that could still continue them."""
        if placements:
            self._take_off(member, placements, reason, is_fault=is_fault)
            self._cancel_soon(member, [placement.key for placement in placements])

    def _leave_draining(self, member: Member) -> None:
        """Move sessions that have stayed for the grace, if other nodes with the same numerics can take them; else they stay."""
        numerics = member.info.numerics if member.info else ""
        if group_of(self._model, self.members.values(), numerics):
            staying = [placement for placement in member.placements.values() if placement.confirmed]
            self._leave(member, staying, f"node {member.node} is draining", is_fault=False)
