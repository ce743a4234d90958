"""An answer under way -> a stream of events.

Owns the order of what is sent. Nothing is sent while the request is queued, so that it can still be refused with a status. The
head goes out with the first batch; then the roles, the pieces as they become ready, all that is ready together in one write, and
the end. If the request asked for its progress, the head goes out at admission, and comments until the first token.

A request that is cancelled by its id ends between two writes. A fault after the head becomes an error event, in the shape of the
answer. The backend's block is left before the last write, so that a reader that is slow at the end holds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager

import trio

from tlserve.api.errors import ErrorAnswer
from tlserve.endpoints.answers.answer_plan import AnswerWriter, StartedAnswer
from tlserve.endpoints.answers.choices import open_choices
from tlserve.endpoints.answers.token_reader import Ready
from tlserve.endpoints.exchange import ApiExchange, describe_fault, log_unforeseen
from tlserve.endpoints.memory import bytes_of_parts
from tlserve.http import sse


async def stream_answer(exchange: ApiExchange, started: StartedAnswer, ping_interval_ms: int) -> None:
    """Generate and send the answer event by event."""
    async with AsyncExitStack() as stack:
        shape = started.task.shape
        sender, writer = _Sender(exchange, stack, shape.stream, ping_interval_ms), shape.writer(started)
        try:
            with exchange.work.obeyed():
                last = await _relay(started, writer, sender)
        except trio.BrokenResourceError:  # the client has gone
            raise
        except Exception as error:
            if sender.events is None:
                raise
            last = writer.fault(_note_fault(exchange, error))
        exchange.work.seal()
        if shape.settle is not None:
            await shape.settle()
        await (await sender.open()).send_raw(last)


async def _relay(started: StartedAnswer, writer: AnswerWriter, sender: _Sender) -> bytes:
    """Send what becomes ready; return the events to send after the backend was left."""
    task, unsent = started.task, b""
    async with open_choices(task.served.backend, started.choices, task.deadline) as batches:
        if task.headers.progress:
            await sender.open()
        async for ready in batches:
            with sender.holding(ready if task.options.logprobs is not None else []):
                unsent = writer.write(ready)
                await sender.open()
                if unsent and not batches.ended:
                    await sender.send(unsent)
                    unsent = b""
    return unsent + writer.end()


def _note_fault(exchange: ApiExchange, error: Exception) -> ErrorAnswer:
    """Return the answer to a fault after the head; note it for the log."""
    exchange.figures.finish = "error"
    log_unforeseen(error, exchange)
    answer = describe_fault(error)
    exchange.note_error(answer)
    return answer


class _Sender:
    """Opens the stream of events once; `events` is None until the head is out."""

    def __init__(
        self, exchange: ApiExchange, stack: AsyncExitStack, form: sse.StreamForm, ping_interval_ms: int
    ) -> None:
        self._exchange = exchange
        self._stack = stack
        self._form = form
        self._ping_interval_ms = ping_interval_ms
        self.events: sse.EventStream | None = None

    @contextmanager
    def holding(self, ready: Ready) -> Iterator[None]:
        """Count the log-probabilities of `ready` as memory of the request inside the block, until they are sent."""
        held_bytes = sum(bytes_of_parts(parts) for _, parts in ready)
        self._exchange.hold_bytes(held_bytes)
        yield
        self._exchange.hold_bytes(-held_bytes)

    async def open(self) -> sse.EventStream:
        """Send the head, unless it is out, and return the stream."""
        if self.events is None:
            headers, responder = self._exchange.headers(), self._exchange.responder
            self._exchange.status = 200
            interval_ms = self._ping_interval_ms
            events = sse.EventStream(responder, self._form, ping_interval_ms=interval_ms, headers=headers)
            await self._exchange.work.uncut(self._enter(events))
            assert self.events is not None
        return self.events

    async def _enter(self, events: sse.EventStream) -> None:
        self.events = await self._stack.enter_async_context(events)

    async def send(self, data: bytes) -> None:
        """Send events; a request that is cancelled meanwhile ends after them."""
        events = await self.open()
        await self._exchange.work.uncut(events.send_raw(data))
