"""One node as a head knows it: its description, its state, and the sessions placed on it.

Owns the judgements: may it get a new session, how loaded is it, has it stalled. Calls no node
(`tlserve.fleet.head.node_watch` does). Time is an argument.
"""

from __future__ import annotations

from typing import Protocol

import attrs
import trio

from tlserve.fleet.head.limits import FleetLimits
from tlserve.fleet.head.node_ranking import SLOTS
from tlserve.fleet.head.prefix_index import PrefixIndex
from tlserve.fleet.link import Ack, NodeInfo, NodeLink, PollReply, SessionEvents, SessionKey
from tlserve.generation import EngineStatistics

NodeIdentity = tuple[str, str]
"""A node's name and its incarnation."""

NOT_MET = "has not answered yet"


class PlacedSession(Protocol):
    """A session as the node that it is placed on sees it; `tlserve.fleet.head.session.Placement` is one."""

    @property
    def key(self) -> SessionKey:
        """Return which placement of the session this is."""

    @property
    def have(self) -> int:
        """Return the number of events that have arrived."""

    @property
    def confirmed(self) -> bool:
        """Return whether the node is known to have it."""

    @property
    def has_work(self) -> bool:
        """Return whether the node has something to compute for it."""

    @property
    def has_ended(self) -> bool:
        """Return whether the session is no longer placed here."""

    @property
    def prefill_tokens(self) -> int:
        """Return the number of prompt tokens that the node still has to read."""

    def ack(self, window_events: int) -> Ack:
        """Acknowledge the events that have arrived, and let the node make `window_events` more than the client has taken."""

    def take(self, update: SessionEvents) -> None:
        """Take the new events of `update`; raises `BrokenAnswer`."""

    def lose(self, reason: str, *, is_fault: bool = True) -> None:
        """Note that the node no longer has the session."""


@attrs.define(eq=False)
class Member:
    """A node of the fleet.

    `absence` is why it cannot be reached, or "". `is_gone`: the directory no longer lists it. `is_doubted`: it must be asked
    for its description again.

    `farewells` are the last acks of sessions that have ended: they are sent with the next poll. `calls` are the scopes of open
    calls: they end with the node. `stalled_at` is the number of steps at which its engine stopped.
    """

    node: str
    link: NodeLink
    limits: FleetLimits
    info: NodeInfo | None = None
    absence: str = NOT_MET
    is_gone: bool = False
    is_doubted: bool = False
    draining_since: float | None = None
    stalled_at: int | None = None
    stalled_since: float = 0.0
    progressed: float = 0.0
    statistics: EngineStatistics = attrs.field(factory=EngineStatistics)
    index: PrefixIndex = attrs.field(init=False)
    placements: dict[SessionKey, PlacedSession] = attrs.field(factory=dict)
    farewells: dict[SessionKey, Ack] = attrs.field(factory=dict)
    calls: dict[int, trio.CancelScope] = attrs.field(factory=dict)
    embeddings: int = 0
    _own_at_report: int = 0

    def __attrs_post_init__(self) -> None:
        self.index = PrefixIndex(self.limits.indexed_blocks)

    @property
    def identity(self) -> NodeIdentity:
        """Return the name and the incarnation."""
        return self.node, self.info.incarnation if self.info else ""

    # --- judgements

    @property
    def is_draining(self) -> bool:
        """Return whether it can be reached, and admits nothing more because it is shutting down."""
        return not self.absence and self.draining_since is not None

    def why_not(self, model_id: str) -> str:
        """Return why it cannot get a new session, or ""."""
        if self.absence or self.info is None:
            return self.absence
        if self.info.backend.model_id != model_id:
            return f"serves {self.info.backend.model_id!r}"
        if self.draining_since is not None:
            return "is draining"
        if self.stalled_at is not None:
            return "has stalled"
        if not self.info.backend.ready:
            return self.info.backend.not_ready_reason or "is not ready"
        return ""

    @property
    def load(self) -> float:
        """Sequences of all heads that run or wait here, scaled to a node of `SLOTS` slots."""
        reported = self.statistics.active_sequences + self.statistics.queue_depth
        own = len(self.placements) + self.embeddings
        sequences = max(own, reported + own - self._own_at_report)
        return sequences * SLOTS / max(1, self.info.slots if self.info else 1)

    def has_stalled(self, now: float) -> bool:
        """Return whether it answers, but has computed nothing for too long although it has work."""
        if not any(placement.has_work for placement in self.placements.values()):
            self.progressed = now
        prefill_tokens = sum(placement.prefill_tokens for placement in self.placements.values())
        limit_s = max(self.limits.stall_s, prefill_tokens * self.limits.prefill_s_per_token)
        return self.stalled_at is None and now - self.progressed > limit_s

    # --- what it reports

    def meet(self, info: NodeInfo, now: float) -> None:
        """Note its description. A new incarnation has an empty cache and no sessions."""
        if self.info is None or self.info.incarnation != info.incarnation:
            self.index = PrefixIndex(self.limits.indexed_blocks)
            self.farewells.clear()
            self.stalled_at = None
            self.statistics = EngineStatistics()
            self._own_at_report = 0
        if self.absence:
            self.progressed = now
        self.info = info
        self.absence = ""
        self.is_doubted = False
        self._note_draining(info.draining, now)
        self._end_quarantine(now)

    def note(self, reply: PollReply, now: float) -> None:
        """Note its state from the reply to a poll."""
        if reply.sessions or reply.statistics.steps_total != self.statistics.steps_total:
            self.progressed = now
        if self.stalled_at is not None and reply.statistics.steps_total != self.stalled_at:
            self.stalled_at = None
        self.statistics = reply.statistics
        self._own_at_report = len(self.placements) + self.embeddings
        self._note_draining(reply.draining, now)

    def stall(self, now: float) -> None:
        """Note that its engine hangs: it gets nothing until it has made a step, or for the time of the quarantine."""
        self.stalled_at = self.statistics.steps_total
        self.stalled_since = now

    def note_draining(self, now: float) -> None:
        """Note that it refused a session because it is shutting down."""
        self._note_draining(True, now)

    def _note_draining(self, is_draining: bool, now: float) -> None:
        if not is_draining:
            self.draining_since = None
        elif self.draining_since is None:
            self.draining_since = now

    def _end_quarantine(self, now: float) -> None:
        if self.stalled_at is not None and now - self.stalled_since > self.limits.stall_quarantine_s:
            self.stalled_at = None
            self.progressed = now
