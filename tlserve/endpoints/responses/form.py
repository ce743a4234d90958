"""The form of the answer to one request of the Responses API, whole and as a stream.

Owns the step from the parts of an answer to a response and its events. A whole response is made by its own events, so that both
agree. Does not know how a response is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from tlserve.api.errors import ErrorAnswer
from tlserve.endpoints.answers.answer_plan import AnswerShape, StartedAnswer
from tlserve.endpoints.answers.token_reader import AnswerPart, Ready
from tlserve.endpoints.responses.kept import KeptResponses
from tlserve.http.sse import EVENTS
from tlserve.responses.documents import encode
from tlserve.responses.events import ResponseEvents
from tlserve.responses.items import PREFIX, Item, with_ids
from tlserve.responses.requests import ResponseRequest
from tlserve.responses.store import KeptResponse


@attrs.frozen
class Keeper:
    """Who keeps a response: where, for which key, and its input without references."""

    kept: KeptResponses
    owner: str
    items: tuple[Item, ...]


class ResponseForm:
    """The form of one answer; `events` are those of the response since it has begun.

    `keeper` keeps the response when it is complete, None: it is not kept.
    """

    def __init__(self, request: ResponseRequest, now_s: Callable[[], float], keeper: Keeper | None = None) -> None:
        self.events: ResponseEvents | None = None
        self._request = request
        self._now_s = now_s
        self._keeper = keeper
        self.shape = AnswerShape(
            id_prefix=PREFIX,
            clips=True,
            whole=self._whole,
            writer=self.begin,
            stream=EVENTS,
            settle=None if keeper is None else self.keep,
        )

    def begin(self, started: StartedAnswer) -> ResponseWriter:
        """Begin the response of an answer under way, and return what writes its events."""
        self.events = ResponseEvents(self._head(started), self._request.tools.custom)
        return ResponseWriter(self.events, started, self._now_s)

    async def keep(self) -> None:
        """Keep the response as it is now, with its events if it is streamed."""
        events, keeper = self.events, self._keeper
        if events is None or keeper is None:
            return
        response = events.response
        await keeper.kept.put(
            KeptResponse(
                id=response["id"],
                owner=keeper.owner,
                created_s=response["created_at"],
                document=response,
                items=with_ids(keeper.items, response["id"]),
                previous=self._request.previous,
                events=tuple(events.sent) if self._request.options.stream else None,
            )
        )

    def _whole(self, started: StartedAnswer, parts: Sequence[Sequence[AnswerPart]]) -> bytes:
        writer = self.begin(started)
        writer.write([(0, list(parts[0]))])
        writer.end()
        assert self.events is not None
        return encode(self.events.response)

    def _head(self, started: StartedAnswer) -> dict[str, Any]:
        sampling = started.task.options.sampling_over(started.task.served.default_sampling)
        return {
            "id": started.head.id,
            "object": "response",
            "created_at": started.head.created,
            "model": started.head.model,
            "store": self._keeper is not None,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            **self._request.shown,
        }


class ResponseWriter:
    """Writes the events of one response."""

    def __init__(self, events: ResponseEvents, started: StartedAnswer, now_s: Callable[[], float]) -> None:
        self._events = events
        self._started = started
        self._now_s = now_s
        self._opened = False

    def write(self, ready: Ready) -> bytes:
        """Return the events of the parts that became ready; first those of the beginning, when the prefill has started."""
        opening = b""
        if not self._opened and (self._started.choices[0].reader.started or any(parts for _, parts in ready)):
            self._opened = True
            opening = self._events.start()
        return opening + b"".join([self._events.piece(part.delta) for _, parts in ready for part in parts])

    def end(self) -> bytes:
        """Return the events after the last part."""
        return self._events.end(self._started.usage(), int(self._now_s()))

    def fault(self, answer: ErrorAnswer) -> bytes:
        """Return the events of an error."""
        return self._events.fault(answer)
