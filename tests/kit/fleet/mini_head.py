"""The smallest possible head: one session on one link, polled to its end, with every count checked.

events = await follow(link, request)                 # raises the error that ended the session
"""

from __future__ import annotations

import itertools
from contextlib import suppress

from tlserve.fleet.link import WINDOW, Ack, NodeLink, NodeLost, SessionKey
from tlserve.generation import GenerationEvent, GenerationRequest, TokenEvent

_SESSIONS = itertools.count(1)
WAIT_S = 1.0


def key(session: int = 1, epoch: int = 0, head: str = "head") -> SessionKey:
    return SessionKey(head, session, epoch)


def fresh_key(head: str = "head") -> SessionKey:
    """Return a key that no session has had."""
    return SessionKey(head, next(_SESSIONS) + 1000, 0)


def ended(events: list[GenerationEvent]) -> bool:
    return bool(events) and isinstance(events[-1], TokenEvent) and events[-1].finish is not None


async def poll_once(
    link: NodeLink, at: SessionKey, have: int, wait_s: float = WAIT_S
) -> tuple[list[GenerationEvent], Exception | None]:
    """Acknowledge `have` events and return the new ones of this session, and the error behind them."""
    reply = await link.poll(at.head, [Ack(at, have, have + WINDOW)], wait_s)
    if at in reply.unknown:
        raise NodeLost("the node does not have the session")
    for session in reply.sessions:
        if session.key == at:
            assert session.start == have, f"events from {session.start} on, but {have} are expected"
            return list(session.events), session.error
    return [], None


async def read_on(link: NodeLink, at: SessionKey, events: list[GenerationEvent]) -> list[GenerationEvent]:
    """Poll a placed session to its end, which is acknowledged; `events` are those already received."""
    error: Exception | None = None
    while not ended(events) and error is None:
        more, error = await poll_once(link, at, len(events))
        events = [*events, *more]
    count = len(events) + (error is not None)
    with suppress(NodeLost):  # a node that drains may end before it answers
        await link.poll(at.head, [Ack(at, count, count)], 0)
    if error is not None:
        raise error
    return events


async def follow(
    link: NodeLink, request: GenerationRequest, at: SessionKey | None = None, wall_s: float = 60.0
) -> list[GenerationEvent]:
    """Place `request` and return all its events; raises the error that refused or ended it."""
    at = at or fresh_key()
    await link.place(at, request, wall_s)
    return await read_on(link, at, [])
