"""One node as a head knows it: what it said of itself, how it fares, and which sessions it has.

Owns the judgements: may it have something new, how loaded is it, has it stalled. Refuses to ask the node anything
(`tlserve.fleet.head.node_watch` does). Time is an argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import trio

from tlserve.fleet.head.limits import FleetLimits
from tlserve.fleet.head.node_ranking import SLOTS
from tlserve.fleet.head.prefix_index import PrefixIndex
from tlserve.fleet.link import Ack, NodeInfo, NodeLink, PollReply, SessionKey
from tlserve.generation import EngineStatistics

if TYPE_CHECKING:
    from tlserve.fleet.head.session import Placement

NodeIdentity = tuple[str, str]
"""A node's name and its incarnation."""

NOT_MET = "has not answered yet"


@attrs.define(eq=False)
class Member:
    """A node of the fleet.

    `absence` says why it is out of reach, or "". `is_gone`: the directory says that it is no more.
    `is_doubted`: it should be asked what it is.

    `farewells` are the last acks of sessions that are over: they go out with the next poll. `calls` are the scopes of calls under
    way: they end with the node. `stalled_at` is the count of steps that its engine stood still at.
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
    placements: dict[SessionKey, Placement] = attrs.field(factory=dict)
    farewells: dict[SessionKey, Ack] = attrs.field(factory=dict)
    calls: dict[int, trio.CancelScope] = attrs.field(factory=dict)
    embeddings: int = 0
    _own_when_told: int = 0

    def __attrs_post_init__(self) -> None:
        self.index = PrefixIndex(self.limits.indexed_blocks)

    @property
    def identity(self) -> NodeIdentity:
        """Return the name and the incarnation."""
        return self.node, self.info.incarnation if self.info else ""

    # --- judgements

    @property
    def is_draining(self) -> bool:
        """Say whether it is within reach, and takes nothing new because it was told to stop."""
        return not self.absence and self.draining_since is not None

    def why_not(self, model_id: str) -> str:
        """Return why it can have nothing new, in words, or ""."""
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
        """Sequences that run or wait here, of all heads, scaled to a node of `SLOTS` slots."""
        told = self.statistics.active_sequences + self.statistics.queue_depth
        own = len(self.placements) + self.embeddings
        sequences = max(own, told + own - self._own_when_told)
        return sequences * SLOTS / max(1, self.info.slots if self.info else 1)

    def has_stalled(self, now: float) -> bool:
        """Say whether it had something to do for long enough, and did nothing, although it answers."""
        if not any(placement.has_work for placement in self.placements.values()):
            self.progressed = now
        prefill_tokens = sum(placement.prefill_tokens for placement in self.placements.values())
        limit_s = max(self.limits.stall_s, prefill_tokens * self.limits.prefill_s_per_token)
        return self.stalled_at is None and now - self.progressed > limit_s

    # --- what it said

    def meet(self, info: NodeInfo, now: float) -> None:
        """Note what it said of itself. Another incarnation has cached nothing and begins anew."""
        if self.info is None or self.info.incarnation != info.incarnation:
            self.index = PrefixIndex(self.limits.indexed_blocks)
            self.farewells.clear()
            self.stalled_at = None
            self.statistics = EngineStatistics()
            self._own_when_told = 0
        if self.absence:
            self.progressed = now
        self.info = info
        self.absence = ""
        self.is_doubted = False
        self._note_draining(info.draining, now)
        self._end_quarantine(now)

    def note(self, reply: PollReply, now: float) -> None:
        """Note how it fares."""
        if reply.sessions or reply.statistics.steps_total != self.statistics.steps_total:
            self.progressed = now
        if self.stalled_at is not None and reply.statistics.steps_total != self.stalled_at:
            self.stalled_at = None
        self.statistics = reply.statistics
        self._own_when_told = len(self.placements) + self.embeddings
        self._note_draining(reply.draining, now)

    def stall(self, now: float) -> None:
        """Note that its engine hangs: it gets nothing until it has made a step, or some time has gone by."""
        self.stalled_at = self.statistics.steps_total
        self.stalled_since = now

    def note_draining(self, now: float) -> None:
        """Note that it refused something because it is leaving."""
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
