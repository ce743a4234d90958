"""The polls of a node: what a head acknowledges in one, and what the reply changes.

Owns the rules for events of unknown placements, for sessions that the node does not know, and for answers that do not fit. Pure
but for the objects that it changes; waits for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from tlserve.fleet.head.member import Member
from tlserve.fleet.head.node_claims import BrokenAnswer
from tlserve.fleet.link import Ack, PollReply, SessionEvents, SessionKey


def acks_of(member: Member) -> list[Ack]:
    """Return an ack for every session that `member` is known to have."""
    window_events = member.limits.window_events
    confirmed = [placement for placement in member.placements.values() if placement.confirmed]
    return [*(placement.ack(window_events) for placement in confirmed), *member.farewells.values()]


def has_paused(acks: Sequence[Ack]) -> bool:
    """Return whether a session waits for its client only: then the next poll must not be far off."""
    return any(ack.have >= ack.until for ack in acks)


def apply_reply(member: Member, acks: Sequence[Ack], reply: PollReply, now: float) -> list[SessionKey]:
    """Apply the `reply` to `acks`; return the sessions that the node should end: older placements and broken answers."""
    for ack in acks:
        if member.farewells.get(ack.key) is ack:
            del member.farewells[ack.key]
    strays = [update.key for update in reply.sessions if not _apply_update(member, update)]
    for key in reply.unknown:
        placement = member.placements.pop(key, None)
        if placement is not None:
            placement.lose(f"node {member.node} no longer knows the session")
    member.note(reply, now)
    return strays


def _apply_update(member: Member, update: SessionEvents) -> bool:
    """Give `update` to its session; return False if the node should end the session."""
    placement = member.placements.get(update.key)
    if placement is None:
        return update.key in member.farewells
    try:
        placement.take(update)
    except BrokenAnswer as fault:
        del member.placements[update.key]
        placement.lose(f"node {member.node} sent an impossible answer: {fault}")
        return False
    if placement.has_ended:
        del member.placements[update.key]
        member.farewells[update.key] = Ack(update.key, placement.have, placement.have)
    return True
