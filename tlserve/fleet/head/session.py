"""One request inside a head: its transcript, where it is placed now, and what its client has still to take.

Owns the inbox, the cursor in the present placement, and the reason why there is none. Refuses to know how nodes are chosen and
asked; lives on the event loop.
"""

from __future__ import annotations

import attrs
import trio

from tlserve.errors import DeadlineExceeded, DrainCut, Draining, EngineFailed, TlserveError, Unavailable
from tlserve.fleet.head.member import Member, NodeIdentity
from tlserve.fleet.head.prefix_index import Chain, PrefixIndex, chain_of
from tlserve.fleet.head.transcript import BrokenAnswer, Transcript
from tlserve.fleet.link import Ack, NodeLost, SessionEvents, SessionKey
from tlserve.generation import GenerationEvent, GenerationRequest, PrefillStarted, TokenEvent

REPLY_GRACE_S = 0.25
"""How long the reply to a placing is waited for once its events have come: it is no news any more."""

ORDERLY = (Draining, DrainCut)
"""A node that says one of these is leaving in order: it did not fail."""

NODE_FAULTS = (EngineFailed, NodeLost, *ORDERLY)
"""What another node would not have said."""


def wall_passed(wall_s: float) -> DeadlineExceeded:
    """Return the error of an answer that took longer than `wall_s`."""
    return DeadlineExceeded(f"the answer was not complete within {wall_s:g} s, the longest that one may take here")


@attrs.define(eq=False)
class Placement:
    """A session on a node. `have` counts the events that came, `until` those that the node was allowed to make.

    `confirmed`: the node is known to have it, so that its absence is a fault. `asking`: the scope of asking the node to have it,
    which ends soon when its events come first. `matched_tokens` were expected in its cache.
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
        """Say whether the node has something to do for it: a session whose window is full has not."""
        return self.confirmed and self.have < self.until

    def confirm(self) -> None:
        """Note that the node has it."""
        if not self.confirmed:
            self.confirmed = True
            self.asking.deadline = trio.current_time() + REPLY_GRACE_S

    def ack(self, window_events: int) -> Ack:
        """Return how far this is: the node may go on for `window_events` beyond what the client took."""
        self.until = self.have + window_events - len(self.session.inbox)
        return Ack(self.key, self.have, self.until)

    def take(self, update: SessionEvents) -> None:
        """Take what is new in `update`; raises `BrokenAnswer`. What came before, a doubled or late reply brings again."""
        if update.start > self.have:
            raise BrokenAnswer(f"event {update.start} came in the place of event {self.have}")
        for event in update.events[self.have - update.start :]:
            self._take_event(event)
        if update.error is not None and not self.session.is_over:
            self.have += 1
            self.session.end_placement(update.error)
        if self.session.is_over:
            self.session.placement = None

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

    `deadline` in trio's time, `wall_s` after its beginning. `chain` names the blocks of its prompt; `index` is the memory of
    the node that had it last.
    """

    def __init__(self, number: int, request: GenerationRequest, deadline: float, wall_s: float) -> None:
        self.number = number
        self.deadline = deadline
        self._wall_s = wall_s
        self.transcript = Transcript(request)
        self.chain: Chain = chain_of(request.prompt, request.cache_salt)
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
        """Say whether the last word has been said, though the client may not have taken it."""
        return self.transcript.ended or self.error is not None

    # --- what comes from nodes

    def take(self, event: GenerationEvent) -> None:
        """Note `event` for the client, unless it has it; raises `BrokenAnswer`."""
        fresh = self.transcript.take(event)
        if fresh is not None:
            self.inbox.append(fresh)
            self._news.set()

    def end_placement(self, error: TlserveError) -> None:
        """Note that the node ended this with `error`: another one goes on, unless it would say the same."""
        if isinstance(error, NODE_FAULTS) or (self.transcript.begun and isinstance(error, Unavailable)):
            self.lose(error.message, is_fault=not isinstance(error, ORDERLY))
        else:
            self.fail(wall_passed(self._wall_s) if isinstance(error, DeadlineExceeded) else error)

    def lose(self, reason: str, *, is_fault: bool = True) -> None:
        """Note that the node has it no more; its client places it anew when it asks for the next event."""
        if self.placement is not None:
            self.excluded.add(self.placement.member.identity)
            self.placement = None
        self.loss = reason
        self.failures += is_fault
        self._news.set()

    def fail(self, error: TlserveError) -> None:
        """End it with `error`, which follows what the client has not taken yet."""
        if not self.is_over:
            self.error = error
            self.placement = None
        self._news.set()

    # --- the client's side

    def take_all(self) -> list[GenerationEvent]:
        """Return what is there; the window opens by as much with the next poll."""
        events, self.inbox = self.inbox, []
        return events

    async def wait_news(self) -> None:
        """Return when something has happened since nothing was there."""
        self._news = trio.Event()
        await self._news.wait()
