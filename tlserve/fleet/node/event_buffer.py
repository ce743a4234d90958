"""The events of one placement that its backend has made and its head does not have yet.

Owns the counts: the first kept event, how many the head takes, whether any are left. Pure: no clock, no tasks, no waiting.
"""

from __future__ import annotations

from collections.abc import Sequence

from tlserve.errors import TlserveError
from tlserve.fleet.link import WINDOW, Ack, SessionEvents, SessionKey
from tlserve.generation import GenerationEvent


class EventBuffer:
    """The events that the head of `key` does not have yet, counted from event 0 of this placement; an error is the last one."""

    def __init__(self, key: SessionKey) -> None:
        self.key = key
        self.ended = False
        self._start = 0
        self._events: list[GenerationEvent] = []
        self._error: TlserveError | None = None
        self._until = WINDOW

    def add(self, batch: Sequence[GenerationEvent]) -> None:
        """Append `batch`."""
        self._events.extend(batch)

    def end(self, error: TlserveError | None = None) -> None:
        """Note that no event follows, except for `error`."""
        self.ended = True
        self._error = error

    def acknowledge(self, ack: Ack) -> bool:
        """Forget the events that the head has, and move the window forward; return False for an ack of events never made."""
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
        """Return whether the head takes no more events for now."""
        return self._start + len(self._events) >= self._until

    @property
    def is_over(self) -> bool:
        """Return whether the head has all events, and none will follow."""
        return self.ended and not self._events and self._error is None

    def rest(self) -> SessionEvents | None:
        """Return the events that the head does not have, or None if it has all."""
        if not self._events and self._error is None:
            return None
        return SessionEvents(key=self.key, start=self._start, events=tuple(self._events), error=self._error)
