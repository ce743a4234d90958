"""The placing of sessions on nodes, and again when a node is lost.

Owns the order of attempts, what a refusal of one node means for the others, how long an unfinished answer waits, and the error
that ends it. `tlserve.fleet.head.node_ranking` decides which node is best. Reads no answers.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import trio

from tlserve.errors import (
    DeadlineExceeded,
    Draining,
    EngineFailed,
    NoCapacity,
    Overloaded,
    Refusal,
    TlserveError,
    Unavailable,
)
from tlserve.fleet.head.limits import FleetLimits
from tlserve.fleet.head.member import Member
from tlserve.fleet.head.node_ranking import Candidate, needs_of, rank
from tlserve.fleet.head.overview import FleetModel, chosen_numerics, group_of, why_none
from tlserve.fleet.head.prefix_index import Chain
from tlserve.fleet.head.session import Placement, Session, shown, wall_passed
from tlserve.fleet.link import NodeLost, NoNode, SessionKey

log = logging.getLogger("tlserve.fleet")

Answer = TypeVar("Answer")

TRY_ANOTHER = (Unavailable, EngineFailed)
"""Errors of one node that another node may not have."""

ASK_AGAIN_S = 0.25
"""How long an unfinished answer waits before it tries full nodes again."""


class Placer:
    """Place the sessions of `head` on `members`; `abandon` gets placements that a node may have but should not."""

    def __init__(
        self,
        head: str,
        model: FleetModel,
        members: Mapping[str, Member],
        limits: FleetLimits,
        abandon: Callable[[Member, SessionKey], None],
    ) -> None:
        self._head = head
        self._model = model
        self._members = members
        self._limits = limits
        self._abandon = abandon
        self.moves = 0
        self._changed = trio.Event()

    def announce_change(self) -> None:
        """Wake the sessions that wait for a node."""
        self._changed.set()
        self._changed = trio.Event()

    async def wait_change(self) -> None:
        """Return when the nodes have changed."""
        await self._changed.wait()

    # --- placing

    async def place(self, session: Session) -> None:
        """Place it for the first time; raises the error for its client. Nothing waits: a full fleet refuses."""
        session.numerics = chosen_numerics(self._model, self._members.values())
        with trio.move_on_at(session.deadline):
            await self._try_all(session)
            return
        raise wall_passed(self._limits.wall_s)

    async def replace(self, session: Session) -> None:
        """Let another node with the same numerics continue it; raises the error that ends it."""
        if session.failures > self._limits.moves:
            log.warning("session %d ends: %d nodes failed: %s", session.number, session.failures, session.loss)
            raise NodeLost(f"{session.failures} nodes failed during this answer; send the request again")
        waits_since: float | None = None
        while not session.is_over and session.placement is None:
            refusal = await self._try_until_wall(session)
            if refusal is None:
                self.moves += 1
                return
            now = trio.current_time()
            waits_since = now if waits_since is None else waits_since
            until = waits_since + self._wait_s(refusal)
            if now >= session.deadline:
                raise wall_passed(self._limits.wall_s)
            if now >= until:
                log.warning("session %d ends: %s; then: %s", session.number, session.loss, refusal.message)
                raise NodeLost("the node of this answer was lost, and no other node could continue; send it again")
            await self._wait_a_little(min(until, session.deadline))

    async def _try_until_wall(self, session: Session) -> TlserveError | None:
        """Return None, or why no node took it now; raises errors that waiting does not fix."""
        with trio.move_on_at(session.deadline):
            try:
                await self._try_all(session)
                return None
            except TRY_ANOTHER as refusal:
                return refusal
        raise wall_passed(self._limits.wall_s)

    def _wait_s(self, refusal: TlserveError) -> float:
        """Return how long to wait: for capacity as long as a request in a queue, for a node less."""
        is_full = isinstance(refusal, Overloaded | NoCapacity)
        return self._limits.room_wait_s if is_full else self._limits.node_wait_s

    async def _wait_a_little(self, until: float) -> None:
        with trio.move_on_at(min(until, trio.current_time() + ASK_AGAIN_S)):
            await self.wait_change()

    async def _try_all(self, session: Session) -> None:
        refusals: list[TlserveError] = []
        for member in self._ranked(session):
            try:
                await self._try_one(session, member)
                return
            except TRY_ANOTHER as refusal:
                if session.is_over:  # it ended while the reply to its placement was lost
                    return
                log.info("node %s does not take session %d: %s", member.node, session.number, refusal.message)
                self._note_refusal(member, refusal)
                refusals.append(refusal)
            except TlserveError as error:
                log.info("node %s ends session %d: %s", member.node, session.number, error.message)
                raise self.end_of(error) from None
        raise worst(refusals)

    async def _try_one(self, session: Session, member: Member) -> None:
        placement = self._open(session, member)
        is_refused = False
        try:
            await self._ask_twice(placement)
            if member.placements.get(placement.key) is not placement:  # lost while the reply was on its way
                raise NodeLost(session.loss or f"node {member.node} {member.absence}")
            placement.confirmed = True
        except TlserveError as error:
            is_refused = not isinstance(error, NodeLost)
            raise
        finally:
            if not placement.confirmed:
                self._close(placement, may_be_there=not is_refused)

    async def _ask_twice(self, placement: Placement) -> None:
        """Call the node, and once more without an answer: placing the same key again changes nothing."""
        member, request = placement.member, placement.session.transcript.continuation()

        async def ask() -> None:
            wall_s = placement.session.deadline - trio.current_time()
            await call(member, lambda: member.link.place(placement.key, request, wall_s), self._limits.call_s)

        with placement.asking:
            try:
                await ask()
            except NodeLost:
                if member.absence:
                    raise
                await ask()

    def _open(self, session: Session, member: Member) -> Placement:
        """Enter the placement: its events may come before the reply to the call."""
        session.epoch += 1
        transcript = session.transcript
        placement = Placement(
            key=SessionKey(self._head, session.number, session.epoch),
            member=member,
            session=session,
            until=self._limits.window_events,
            prefill_tokens=len(transcript.request.prompt) + len(transcript.emitted),
            matched_tokens=member.index.matched_tokens(session.chain),
        )
        session.placement = member.placements[placement.key] = placement
        session.index = member.index
        member.index.insert(session.chain)
        return placement

    def _close(self, placement: Placement, *, may_be_there: bool) -> None:
        """Remove a placement that was refused, or whose reply was lost."""
        placement.member.placements.pop(placement.key, None)
        if placement.session.placement is placement:
            placement.session.placement = None
        if may_be_there:
            self._abandon(placement.member, placement.key)

    def end_of(self, error: TlserveError) -> TlserveError:
        """Return what a client gets for an `error` of a node that every node would have."""
        return wall_passed(self._limits.wall_s) if isinstance(error, DeadlineExceeded) else shown(error)

    def _note_refusal(self, member: Member, refusal: TlserveError) -> None:
        if isinstance(refusal, Draining):
            member.note_draining(trio.current_time())
        elif isinstance(refusal, EngineFailed):
            member.is_doubted = True

    # --- choosing

    def _ranked(self, session: Session) -> list[Member]:
        """Return the nodes that can take it, best first; raises `NoNode`, or the `Refusal` of a feature that no node supports."""
        request = session.transcript.request
        able = self._group(session.numerics or "")
        willing = self._willing(able, needs_of(request))
        room = len(request.prompt) + request.max_tokens
        roomy = [member for member in willing if member.info and member.info.backend.context_tokens >= room]
        if not roomy:
            raise NoNode(f"no available node has a context of the {room} tokens of this request")
        fresh = [member for member in roomy if member.identity not in session.excluded]
        # nodes that lost it before and have recovered: better than none
        again = [member for member in roomy if member.identity in session.excluded]
        return [*self._rank(fresh, session.chain, session.home), *self._rank(again, session.chain, session.home)]

    def ranked_for_embedding(self) -> list[Member]:
        """Return the nodes that can encode, best first; raises as for a session."""
        able = self._group(chosen_numerics(self._model, self._members.values()))
        return self._rank(self._willing(able, frozenset({"embeddings"})))

    def _group(self, numerics: str) -> list[Member]:
        able = group_of(self._model, self._members.values(), numerics)
        if not able:
            log.warning("a request is refused: %s", why_none(self._model, self._members.values()))
            raise NoNode(f"no node serves {self._model.model_id!r} now; retry soon")
        return able

    def _willing(self, able: Sequence[Member], needs: frozenset[str]) -> list[Member]:
        willing = [member for member in able if member.info and not needs & member.info.refusals.keys()]
        if not willing:
            refusals = able[0].info.refusals if able[0].info else {}
            feature = min(needs & refusals.keys())
            raise Refusal(refusals[feature], param=feature)
        return willing

    def _rank(self, members: Sequence[Member], chain: Chain = (), home: bytes = b"") -> list[Member]:
        candidates = [Candidate(member.node, member.load, member.index.matched_tokens(chain)) for member in members]
        ranked = rank(candidates, home, self._limits.weights)
        return [self._members[candidate.node] for candidate in ranked]


async def call(member: Member, ask: Callable[[], Awaitable[Answer]], within_s: float) -> Answer:
    """Await an answer of `member`'s link; raises `NodeLost` if the time is up or the node is lost meanwhile."""
    with trio.move_on_after(within_s) as scope:
        member.calls[id(scope)] = scope
        try:
            return await ask()
        except TlserveError:
            raise
        except Exception as error:  # an answer that the link cannot read means a lost node, never a failed head
            log.exception("the link to node %s failed", member.node)
            raise NodeLost(f"the link to node {member.node} failed: {type(error).__name__}") from None
        finally:
            del member.calls[id(scope)]
    raise NodeLost(f"node {member.node} {member.absence or 'did not answer in time'}")


def worst(refusals: Sequence[TlserveError]) -> TlserveError:
    """Return the error for several refusals: that the nodes are full, if any is; otherwise the last one."""
    full = [refusal for refusal in refusals if isinstance(refusal, Overloaded)]
    if full:
        wait_s = min(refusal.retry_after_s for refusal in full)
        return Overloaded(f"all nodes are full; retry in {wait_s} s", retry_after_s=wait_s)
    last = refusals[-1]
    return NoNode("no node takes new requests: all are shutting down") if isinstance(last, Draining) else shown(last)
