"""One request inside a head: its transcript, its current placement, and the events that its client has not taken yet.

Owns the inbox, the position in the current placement, and the reason why there is none. Does not know how nodes are chosen and
called. Lives on the event loop.
"""

from __future__ import annotations

import attrs
import trio

from tlserve.errors import (
    DeadlineExceeded,
    DrainCut,
    Draining,
    EngineFailed,
    GrammarLimitExceeded,
    ModelLoadFailed,
    ModelLoading,
    ModelTooLarge,
    NoCapacity,
    Overloaded,
    ServerFault,
    TlserveError,
    Unavailable,
)
from tlserve.fleet.head.member import Member, NodeIdentity
from tlserve.fleet.head.node_claims import BrokenAnswer
from tlserve.fleet.head.prefix_index import Chain, PrefixIndex, chain_of, home_key
from tlserve.fleet.head.transcript import Transcript
from tlserve.fleet.link import Ack, NodeLost, SessionEvents, SessionKey
from tlserve.generation import GenerationEvent, GenerationRequest, PrefillStarted, TokenEvent

REPLY_GRACE_S = 0.25
"""How long to wait for the reply to `place` once events of the session have arrived: it has nothing new to say then."""

ORDERLY = (Draining, DrainCut)
"""The errors of a node that shuts down in order: it did not fail."""

NODE_FAULTS = (EngineFailed, NodeLost, *ORDERLY)
"""The errors that another node would not have raised."""


def wall_passed(wall_s: float) -> DeadlineExceeded:
    """Return the error of an answer that took longer than `wall_s`."""
    return DeadlineExceeded(f"the answer was not complete within {wall_s:g} s, the limit of this server")


_SHOWN: tuple[tuple[type[TlserveError], str], ...] = (
    (GrammarLimitExceeded, ""),
    (NodeLost, "the node that took this request was lost; retry soon"),
    (EngineFailed, "the engine of the node that took this request failed; retry soon"),
    (DrainCut, "the node that took this request had to stop before the answer was complete"),
    (Overloaded, "the nodes are full; retry soon"),
    (NoCapacity, "the nodes have no room for this request; retry soon"),
    (ModelLoading, "the nodes do not have the model in memory yet; retry soon"),
    (ModelLoadFailed, "the nodes could not load the model; their logs say why"),
    (ModelTooLarge, "the model does not fit the memory of the nodes"),
    (Draining, "the nodes are shutting down; retry soon"),
    (Unavailable, "no node can take this request now; retry soon"),
    (ServerFault, "the node that took this request failed; the request is not at fault"),
)
"""What a client gets for an error of a node; the first class decides, "" keeps the node's words."""


def shown(error: TlserveError) -> TlserveError:
    """Return the error that a client gets for `error` of a node or of its link.

    The words of a node's faults are for the log: they can name its address. What a node says of the request itself is passed on.
    """
    for kind, words in _SHOWN:
        if isinstance(error, kind):
            hidden = kind(words) if words else error
            if isinstance(error, Unavailable) and isinstance(hidden, Unavailable):
                hidden.retry_after_s = error.retry_after_s
            return hidden
    return error


@attrs.define(eq=False)
class Placement:
    """A session on a node. `have` counts the events that have arrived, `until` those that the node is allowed to make.

    `confirmed`: the node is known to have it, so that its absence is a fault. `asking` is the scope of the call that places it,
    which ends soon when events arrive first. `matched_tokens` were expected in the node's cache.
    """

    key: SessionKey
    member: Member
    session: Session
    until: int
    prefill_tokens: int
    matched_tokens: int = 0
    have: int = 0
    confirmed: bool = False
    asking: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    @property
    def has_work(self) -> bool:
        """Return whether the node has something to compute for it: not while its window is full."""
        return self.confirmed and self.have < self.until

    @property
    def has_ended(self) -> bool:
        """Return whether the session is no longer placed here."""
        return self.session.placement is not self

    def confirm(self) -> None:
        """Note that the node has it."""
        if not self.confirmed:
            self.confirmed = True
            self.asking.deadline = trio.current_time() + REPLY_GRACE_S

    def ack(self, window_events: int) -> Ack:
        """Acknowledge the events that have arrived, and let the node make `window_events` more than the client has taken."""
        self.until = self.have + window_events - len(self.session.inbox)
        return Ack(self.key, self.have, self.until)

    def take(self, update: SessionEvents) -> None:
        """Take the new events of `update`, leaving out those of a late or repeated reply; raises `BrokenAnswer`."""
        if not 0 <= update.start <= self.have:
            raise BrokenAnswer(f"event {update.start} came instead of event {self.have}")
        for event in update.events[self.have - update.start :]:
            self._take_event(event)
        if update.error is not None and not self.session.is_over:
            self.have += 1
            self.session.end_placement(update.error)
        if self.session.is_over:
            self.session.placement = None

    def lose(self, reason: str, *, is_fault: bool = True) -> None:
        """Note that the node no longer has the session."""
        self.session.lose(reason, is_fault=is_fault)

    def _take_event(self, event: GenerationEvent) -> None:
        self.session.take(event)
        self.have += 1
        self.confirm()
        if isinstance(event, TokenEvent):
            self.prefill_tokens = 0
        elif isinstance(event, PrefillStarted):
            self.member.index.correct(self.matched_tokens, event.cached_tokens)
            self.prefill_tokens -= min(self.prefill_tokens, event.cached_tokens)


class Session:
    """One admitted request, until its client leaves.

    `deadline` is in trio's time, `wall_s` after the beginning. `chain` names the blocks of its prompt, `home` its
    conversation; `index` is the prefix index of the node that had it last.
    """

    def __init__(
        self, number: int, request: GenerationRequest, deadline: float, wall_s: float, vocabulary_size: int
    ) -> None:
        self.number = number
        self.deadline = deadline
        self._wall_s = wall_s
        self.transcript = Transcript(request, vocabulary_size)
        self.chain: Chain = chain_of(request.prompt, request.cache_namespace)
        self.home = home_key(self.chain, request.conversation, request.cache_namespace)
        self.numerics: str | None = None
        self.placement: Placement | None = None
        self.index: PrefixIndex | None = None
        self.inbox: list[GenerationEvent] = []
        self.error: TlserveError | None = None
        self.loss = ""
        self.epoch = 0
        self.failures = 0
        self.excluded: set[NodeIdentity] = set()
        self._news = trio.Event()

    @property
    def is_over(self) -> bool:
        """Return whether the answer has ended; the client may still have events to take."""
        return self.transcript.ended or self.error is not None

    # --- from the nodes

    def take(self, event: GenerationEvent) -> None:
        """Keep `event` for the client, unless it has had it before; raises `BrokenAnswer`."""
        fresh = self.transcript.take(event)
        if fresh is not None:
            self.inbox.append(fresh)
            self._news.set()

    def end_placement(self, error: TlserveError) -> None:
        """Note that the node ended this with `error`: another node continues, unless it would raise the same."""
        if isinstance(error, NODE_FAULTS) or (self.transcript.begun and isinstance(error, Unavailable)):
            self.lose(error.message, is_fault=not isinstance(error, ORDERLY))
        else:
            self.fail(wall_passed(self._wall_s) if isinstance(error, DeadlineExceeded) else shown(error))

    def lose(self, reason: str, *, is_fault: bool = True) -> None:
        """Note that the node no longer has it; it is placed again when its client needs the next event."""
        if self.placement is not None:
            self.excluded.add(self.placement.member.identity)
            self.placement = None
        self.loss = reason
        self.failures += is_fault
        self._news.set()

    def fail(self, error: TlserveError) -> None:
        """End it with `error`, which the client gets after the events in the inbox."""
        if not self.is_over:
            self.error = error
            self.placement = None
        self._news.set()

    # --- to the client

    def take_all(self) -> list[GenerationEvent]:
        """Empty the inbox; the next poll opens the window by as many events."""
        events, self.inbox = self.inbox, []
        return events

    async def wait_news(self) -> None:
        """Return when something has happened to the session."""
        self._news = trio.Event()
        await self._news.wait()
