"""The events of one placement, between what its backend gave and what its head has.

Owns the counting: from which event on they are kept, how many the head wants, whether anything is left to say. Pure: no clock,
no tasks. Refuses to know who waits for what.
"""

from __future__ import annotations

from collections.abc import Sequence

from tlserve.errors import TlserveError
from tlserve.fleet.link import WINDOW, Ack, SessionEvents, SessionKey
from tlserve.generation import GenerationEvent


class EventBuffer:
    """What the head of `key` does not have yet, counted from event 0 of this placement; an error is the last event."""

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        self.ended = False
        self._start = 0
        self._events: list[GenerationEvent] = []
        self._error: TlserveError | None = None
        self._until = WINDOW

    def add(self, batch: Sequence[GenerationEvent]) -> None:
        """Keep `batch` behind what is there."""
        self._events.extend(batch)

    def end(self, error: TlserveError | None = None) -> None:
        """Say that nothing more comes, but for `error`."""
        self.ended = True
        self._error = error

    def acknowledge(self, ack: Ack) -> bool:
        """Forget what the head has and move the window, which never goes back; False for more than there ever was."""
        have = max(ack.have - self._start, 0)
        events = len(self._events)
        if have > events + (self._error is not None):
            return False
        if have > events:
            self._error = None
        del self._events[:have]
        self._start += have
        self._until = max(self._until, ack.until)
        return True

    @property
    def is_full(self) -> bool:
        """Say whether the head wants no more for now."""
        return self._start + len(self._events) >= self._until

    @property
    def is_over(self) -> bool:
        """Say whether the head has all that there will ever be."""
        return self.ended and not self._events and self._error is None

    def rest(self) -> SessionEvents | None:
        """Return what the head does not have, None if it has all."""
        if not self._events and self._error is None:
            return None
        return SessionEvents(key=self.key, start=self._start, events=tuple(self._events), error=self._error)
