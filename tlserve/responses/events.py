"""The typed events of a streamed response.

Owns their names, their order, their members and their sequence numbers. Does not know when they are sent. Source: the public
reference, streaming events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tlserve.api.answers import Usage
from tlserve.api.errors import ErrorAnswer
from tlserve.chat.output.deltas import NOTHING, Delta
from tlserve.generation import Finish
from tlserve.http import sse
from tlserve.responses.documents import COMPLETED, FAILED, IN_PROGRESS, INCOMPLETE, QUEUED, encode, response_fields
from tlserve.responses.items import Item
from tlserve.responses.output_items import Event, OutputItems


class ResponseEvents:
    """The events of one response: `start`, then `piece` for each delta, then `end`; or `fault` at any time.

    `response` is the response as it is now; `sent` are all events so far, in order. `head` has what does not change.
    """

    def __init__(self, head: Mapping[str, Any], custom: frozenset[str] = frozenset()) -> None:
        self.sent: list[bytes] = []
        self._head = head
        self._items = OutputItems(head["id"], custom)
        self._last = NOTHING
        self.response = response_fields(head, IN_PROGRESS)

    @property
    def items(self) -> list[Item]:
        """Return the items that are complete."""
        return self._items.items

    def queue(self) -> bytes:
        """Return the events of a response that waits."""
        self.response = response_fields(self._head, QUEUED)
        return self._emit([("created", {"response": self.response}), ("queued", {"response": self.response})])

    def start(self) -> bytes:
        """Return the events of a response whose answer begins."""
        self.response = response_fields(self._head, IN_PROGRESS)
        own = {"response": self.response}
        return self._emit([("in_progress", own)] if self.sent else [("created", own), ("in_progress", own)])

    def piece(self, delta: Delta) -> bytes:
        """Return the events of what a delta adds to the output."""
        self._last = delta
        return self._emit(self._items.feed(delta))

    def end(self, usage: Usage, completed_at: int) -> bytes:
        """Return the end of the last item and of the response."""
        status = INCOMPLETE if self._last.finish is Finish.LENGTH else COMPLETED
        data = self._emit(self._items.finish(status))
        at = completed_at if status == COMPLETED else None
        return data + self._last_event(status, usage=usage, completed_at=at)

    def fault(self, answer: ErrorAnswer) -> bytes:
        """Return the events of an error."""
        error = {"code": answer.code, "message": answer.message, "param": answer.param}
        data = self._numbered("error", error)
        return data + self._last_event(FAILED, error=answer)

    def stop(self, status: str, usage: Usage) -> None:
        """End the response without an event: it was cancelled."""
        for _ in self._items.finish(INCOMPLETE):
            pass
        self.response = response_fields(self._head, status, output=self.items, usage=usage)

    def _last_event(self, status: str, **fields: Any) -> bytes:
        self.response = response_fields(self._head, status, output=self.items, **fields)
        return self._emit([(status, {"response": self.response})])

    def _emit(self, events: Iterable[Event]) -> bytes:
        return b"".join([self._numbered(f"response.{kind}", fields) for kind, fields in events])

    def _numbered(self, name: str, fields: Mapping[str, Any]) -> bytes:
        data = sse.event(encode({"type": name, "sequence_number": len(self.sent), **fields}), name)
        self.sent.append(data)
        return data
