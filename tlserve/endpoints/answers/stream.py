"""An answer under way -> a stream of events.

Owns the order of what is sent. Nothing is sent while the request is queued, so that it can still be refused with a status. The
head goes out with the first batch; then the roles, the pieces as they become ready, all that is ready together in one write, and
the end. If the request asked for its progress, the head goes out at admission, and comments until the first token.

A fault after the head becomes one error event and `[DONE]`. The backend's block is left before the last write, so that a reader
that is slow at the end holds nothing.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager

import attrs
import trio

from tlserve.api.answers import NO_EXTRAS, Extras, Usage
from tlserve.endpoints.answers.answer_plan import Choice, StartedAnswer
from tlserve.endpoints.answers.choices import Ready, open_choices
from tlserve.endpoints.answers.token_reader import AnswerPart
from tlserve.endpoints.exchange import ApiExchange, describe_fault, log_unforeseen
from tlserve.endpoints.memory import bytes_of_parts
from tlserve.generation import Progress
from tlserve.http import sse


async def stream_answer(exchange: ApiExchange, started: StartedAnswer, ping_interval_ms: int) -> None:
    """Generate and send the answer event by event."""
    async with AsyncExitStack() as stack:
        sender = _Sender(exchange, stack, ping_interval_ms)
        try:
            last = await _relay(started, sender)
        except trio.BrokenResourceError:  # the client has gone
            raise
        except Exception as error:
            if sender.events is None:
                raise
            last = _error_event(exchange, error)
        await (await sender.open()).send_raw(last + sse.DONE)


async def _relay(started: StartedAnswer, sender: _Sender) -> bytes:
    """Send what becomes ready; return the events to send after the backend was left."""
    task, writer, unsent = started.task, StreamWriter(started), b""
    async with open_choices(task.served.backend, started.choices, task.deadline) as batches:
        if task.headers.progress:
            await sender.open()
        async for ready in batches:
            with sender.holding(ready if task.options.logprobs is not None else []):
                unsent = writer.write(ready)
                events = sender.events or await sender.open()
                if unsent and not batches.ended:
                    await events.send_raw(unsent)
                    unsent = b""
    return unsent + writer.end()


def _error_event(exchange: ApiExchange, error: Exception) -> bytes:
    """Return the event of a fault after the head."""
    exchange.figures.finish = "error"
    log_unforeseen(error, exchange)
    answer = describe_fault(error)
    exchange.note_error(answer)
    return sse.event(answer.document())


class _Sender:
    """Opens the stream of events once; `events` is None until the head is out."""

    def __init__(self, exchange: ApiExchange, stack: AsyncExitStack, ping_interval_ms: int) -> None:
        self._exchange = exchange
        self._stack = stack
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
            events = sse.EventStream(responder, ping_interval_ms=self._ping_interval_ms, headers=headers)
            self.events = await self._stack.enter_async_context(events)
        return self.events


# --- what is written -----------------------------------------------------------------------------------------------------


class StreamState(enum.Enum):
    """How far a stream is."""

    QUEUED = "queued"
    OPENED = "opened"
    ENDED = "ended"


Write = Callable[[Ready], bytes]


class StreamWriter:
    """Writes the events of one answer: `write` for what became ready, `end` after the last of it.

    The table holds the writers of each state; `_open` goes from QUEUED to OPENED. Writing after the end is an error (KeyError).
    """

    def __init__(self, started: StartedAnswer) -> None:
        self.state = StreamState.QUEUED
        self._started = started
        options = started.task.options
        self._chunks = started.task.shape.chunks(started.head, options.include_usage)
        self._sent = _Sent(started)
        progress = ProgressWriter(started.choices[0], self._sent) if started.task.headers.progress else None
        counts = options.return_token_ids or options.continuous_usage or progress is not None
        pieces: Write = self._counted_pieces if counts else self._plain_pieces
        first: Sequence[Write] = () if progress is None else (progress.write,)
        self._table: Mapping[StreamState, Sequence[Write]] = {
            StreamState.QUEUED: (*first, self._open, pieces),
            StreamState.OPENED: (*first, pieces),
        }

    def write(self, ready: Ready) -> bytes:
        """Return the events of what became ready together."""
        return b"".join([write(ready) for write in self._table[self.state]])

    def end(self) -> bytes:
        """Return the events after the last piece, `[DONE]` excepted."""
        self.state = StreamState.ENDED
        if not self._started.task.options.include_usage:
            return b""
        return sse.event(self._chunks.usage(self._started.usage()))

    def _open(self, _ready: Ready) -> bytes:
        """Return the chunks that name the roles, when the first prefill has started."""
        if not any(choice.reader.started for choice in self._started.choices):
            return b""
        self.state = StreamState.OPENED
        openings = map(self._opening, range(len(self._started.choices)))
        return b"".join(sse.event(opening) for opening in openings if opening is not None)

    def _opening(self, index: int) -> bytes | None:
        extras = self._started.prompt_extras(index) if index == 0 else NO_EXTRAS
        opening = self._chunks.opening(index, extras, self._sent.usage())
        if opening is not None:
            self._sent.begun.add(index)
        return opening

    def _plain_pieces(self, ready: Ready) -> bytes:
        piece = self._chunks.piece
        return b"".join([sse.event(piece(part.delta, index)) for index, parts in ready for part in parts])

    def _counted_pieces(self, ready: Ready) -> bytes:
        return b"".join([sse.event(self._counted_piece(index, part)) for index, parts in ready for part in parts])

    def _counted_piece(self, index: int, part: AnswerPart) -> bytes:
        extras = self._sent.extras(index, part)
        self._sent.add(index, part)
        return self._chunks.piece(part.delta, index, extras, self._sent.usage())


class ProgressWriter:
    """Writes the progress of the first choice as comments, up to the first token that was sent."""

    def __init__(self, choice: Choice, sent: _Sent) -> None:
        self._reader = choice.reader
        self._prompt_tokens = len(choice.request.prompt)
        self._sent = sent

    def write(self, ready: Ready) -> bytes:
        """Return the comment of the latest progress, nothing if a token says more."""
        news = self._reader.take_progress()
        if news is None or self._sent.tokens or any(part.tokens for _, parts in ready for part in parts):
            return b""
        return sse.comment(progress_words(news, self._prompt_tokens))


def progress_words(news: Progress, prompt_tokens: int) -> str:
    """Return the text of a progress comment: the requests that wait before this one, or how much of its prompt is computed."""
    if news.ahead is not None:
        return f"progress queue={news.ahead}"
    return f"progress prefill={news.done}/{prompt_tokens}"


class _Sent:
    """What was sent of each choice: chunks report that, not what is only ready. `begun` are the choices with a chunk out."""

    def __init__(self, started: StartedAnswer) -> None:
        self._started = started
        self._options = started.task.options
        self._reasoning = [0] * len(started.choices)
        self.begun: set[int] = set()
        self.tokens = 0

    def add(self, index: int, part: AnswerPart) -> None:
        """Count a part."""
        self.begun.add(index)
        self.tokens += len(part.tokens)
        self._reasoning[index] = part.reasoning_tokens

    def extras(self, index: int, part: AnswerPart) -> Extras:
        """Return the extras of a part's chunk; the first chunk of a choice has the prompt's ids."""
        if not self._options.return_token_ids:
            return NO_EXTRAS
        own = NO_EXTRAS if index in self.begun else self._started.prompt_extras(index)
        return attrs.evolve(own, token_ids=part.tokens)

    def usage(self) -> Usage | None:
        """Return the usage up to what was sent last, if the request asked for it in each chunk."""
        if not self._options.continuous_usage:
            return None
        return attrs.evolve(self._started.usage(), completion=self.tokens, reasoning=sum(self._reasoning))
