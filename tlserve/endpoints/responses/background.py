"""A response that is made in the background: its request ends at once, and later ones fetch it.

Owns the steps: it begins when the backend has admitted it, until then an error is the answer to its request; it is kept when it
begins and when it ends; and it has the permit of its key until then. Does not know the routes.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

import attrs
import trio

from tlserve.access.door import Entry
from tlserve.endpoints.answers.answer_plan import StartedAnswer
from tlserve.endpoints.answers.choices import open_choices
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange, describe_fault, log_unforeseen
from tlserve.endpoints.responses.form import ResponseForm, ResponseWriter
from tlserve.endpoints.responses.kept import KeptResponses, LiveResponse
from tlserve.errors import DrainCut
from tlserve.http import sse
from tlserve.responses.documents import CANCELLED
from tlserve.telemetry.request_log import RequestFigures

LAST_PUT_S = 2.0
"""How long the end of a response can still take to be kept when the server ends, in seconds."""


async def begin_in_background(
    api: ApiContext,
    exchange: ApiExchange,
    kept: KeptResponses,
    form: ResponseForm,
    started: StartedAnswer,
    held: AsyncExitStack,
) -> LiveResponse:
    """Begin the response of `started` in the background; return when it was admitted, or raise why not.

    The background takes over what `held` keeps, such as the model in memory.
    """
    writer = form.begin(started)
    assert form.events is not None
    form.events.queue()
    live = LiveResponse(started.head.id, exchange.entry.key_name or "", form.events)
    making = _Making(api, exchange, form, started, writer, live, exchange.entry, exchange.figures, held.pop_all())
    _detach(exchange)
    await kept.start(live, making.run)
    return live


def _detach(exchange: ApiExchange) -> None:
    """Let the request end without the permit and the figures of its answer, which are those of the background now."""
    exchange.extra_headers.extend(exchange.entry.headers(trio.current_time()))
    exchange.entry = Entry(exchange.entry.key_name)
    old = exchange.figures
    exchange.figures = RequestFigures(key=old.key, model=old.model, prepared_ms=old.prepared_ms, trace_id=old.trace_id)


@attrs.frozen(eq=False)
class _Making:
    """One response that is being made."""

    api: ApiContext
    exchange: ApiExchange
    form: ResponseForm
    started: StartedAnswer
    writer: ResponseWriter
    live: LiveResponse
    entry: Entry
    figures: RequestFigures
    held: AsyncExitStack

    async def run(self) -> None:
        """Make the response, and keep it."""
        async with self.held:
            await self._run()

    async def _run(self) -> None:
        try:
            with self.live.scope:
                await self._generate()
            if self.live.scope.cancelled_caught:
                self.live.events.stop(CANCELLED, self.started.usage())
        except trio.Cancelled:
            self.writer.fault(describe_fault(DrainCut()))
            raise
        except Exception as error:
            log_unforeseen(error, self.exchange)
            self._fail(error)
        finally:
            await self._end()

    async def _generate(self) -> None:
        task = self.started.task
        async with open_choices(task.served.backend, self.started.choices, task.deadline) as batches:
            await self.form.keep()
            self.live.begun.set()
            async for ready in batches:
                self.writer.write(ready)
                self.live.wake()
        self.writer.end()

    async def _end(self) -> None:
        """Give back the permit of a response, and keep its end if it had begun.

        The permit comes first: a client that sees the end can send its next request at once.
        """
        self.entry.leave(self.figures.used_tokens, trio.current_time())
        if self.live.begun.is_set():
            with trio.move_on_after(LAST_PUT_S, shield=True):
                await self.form.keep()
            self._log()

    def _fail(self, error: Exception) -> None:
        if not self.live.begun.is_set():
            self.live.refusal = error
            return
        answer = describe_fault(error)
        self.figures.error, self.figures.finish = answer.kind, "error"
        self.writer.fault(answer)

    def _log(self) -> None:
        record = self.figures.record(
            request_id=self.exchange.id,
            method="POST",
            path=f"/v1/responses/{self.live.id}",
            status=200,
            total_ms=self.started.elapsed_ms(),
        )
        self.api.log(record)


async def relay_events(api: ApiContext, exchange: ApiExchange, live: LiveResponse, after: int = -1) -> None:
    """Send the events of a response in the background whose numbers are above `after`, as they come."""
    exchange.work.seal()  # the response itself is cancelled, not the request that reads its events
    exchange.status = 200
    sent = after + 1
    interval_ms, headers = api.settings.ping_interval_ms, exchange.headers()
    async with sse.EventStream(exchange.responder, ping_interval_ms=interval_ms, headers=headers) as events:
        while True:
            await live.wait_more(sent)
            news = live.events.sent[sent:]
            if not news:
                return
            sent += len(news)
            await events.send_raw(b"".join(news))
