"""The smallest head reads a session to its end, and notices a missing event."""

from collections.abc import Sequence

import attrs
import pytest

from tests.kit.fleet.mini_head import fresh_key, poll_once
from tlserve.fleet.link import Ack, PollReply, SessionEvents
from tlserve.generation import EngineStatistics, PrefillStarted


class Skipping:
    """A link whose session begins at its second event."""

    async def poll(self, head: str, acks: Sequence[Ack], wait_s: float) -> PollReply:
        first = SessionEvents(key=acks[0].key, start=acks[0].have, events=(PrefillStarted(),))
        reply = PollReply(incarnation="i", sessions=(first,), unknown=(), statistics=EngineStatistics())
        return attrs.evolve(reply, sessions=(attrs.evolve(first, start=first.start + 1),))


async def test_a_missing_event_is_detected() -> None:
    with pytest.raises(AssertionError, match="events from 1 on, but 0 are expected"):
        await poll_once(Skipping(), fresh_key(), 0)  # type: ignore[arg-type]
