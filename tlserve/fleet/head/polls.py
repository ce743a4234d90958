"""What a poll's reply changes: events reach their sessions, and what a node should not have any more is named.

Owns the rules for events of unknown placements, for sessions that a node does not know, and for answers that do not fit. Refuses
to wait. Pure but for the objects that it changes.
"""

from __future__ import annotations

from collections.abc import Sequence

from tlserve.fleet.head.member import Member
from tlserve.fleet.head.session import Placement
from tlserve.fleet.head.transcript import BrokenAnswer
from tlserve.fleet.link import Ack, PollReply, SessionEvents, SessionKey


def acks_of(member: Member) -> list[Ack]:
    """Return how far the head is in everything that `member` has of it; what it may not have yet is left out."""
    window_events = member.limits.window_events
    confirmed = [placement for placement in member.placements.values() if placement.confirmed]
    return [*(placement.ack(window_events) for placement in confirmed), *member.farewells.values()]


def has_paused(acks: Sequence[Ack]) -> bool:
    """Say whether a session waits for its client alone: the node must soon be told that it may go on."""
    return any(ack.have >= ack.until for ack in acks)


def settle(member: Member, acks: Sequence[Ack], reply: PollReply, now: float) -> list[SessionKey]:
    """Apply the `reply` to `acks`; return what the node has and should end: strays of older placements, broken answers."""
    for ack in acks:
        if member.farewells.get(ack.key) is ack:
            del member.farewells[ack.key]
    strays = [update.key for update in reply.sessions if not _settle_one(member, update)]
    for key in reply.unknown:
        placement = member.placements.pop(key, None)
        if placement is not None:
            placement.session.lose(f"node {member.node} does not know the session any more")
    member.note(reply, now)
    return strays


def _settle_one(member: Member, update: SessionEvents) -> bool:
    """Give `update` to its session; False: the node should end it."""
    placement = member.placements.get(update.key)
    if placement is None:
        return update.key in member.farewells
    try:
        placement.take(update)
    except BrokenAnswer as fault:
        del member.placements[update.key]
        placement.session.lose(f"node {member.node} answered what cannot be: {fault}")
        return False
    if placement.session.placement is not placement:
        _say_farewell(member, placement)
    return True


def _say_farewell(member: Member, placement: Placement) -> None:
    del member.placements[placement.key]
    member.farewells[placement.key] = Ack(placement.key, placement.have, placement.have)
