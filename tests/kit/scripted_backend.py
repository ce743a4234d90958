"""A `generation.Backend` that plays scripts, in the event loop, at virtual times; no threads.

By default it continues a prompt as the successor bigram does: after token t comes t + 1. A script gives the times of the
request's start and tokens, and the place where it fails; a gate holds it until the test opens it. A request with progress or
prompt log-probabilities gets invented ones, the same every time. The backend counts open, finished and aborted requests.

Time passes only by trio's clock: all events that are ready at once are one batch, at most `batch_tokens` long.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager

import attrs
import numpy as np
import trio
from numpy.typing import NDArray

from tlserve.errors import ContextLengthExceeded, Draining, TlserveError
from tlserve.generation import (
    Backend,
    BackendInfo,
    EmbeddingRequest,
    EngineStatistics,
    Finish,
    GenerationEvent,
    GenerationRequest,
    PrefillStarted,
    Progress,
    PromptLogprobs,
    PromptToken,
    TokenEvent,
    TokenLogprob,
)

QUEUE = -1
"""The gate before `PrefillStarted`; gate i is before token i."""


def successors(request: GenerationRequest) -> tuple[int, ...]:
    """Return `max_tokens` tokens, each one more than the one before, within a byte."""
    return tuple((request.prompt[-1] + 1 + index) % 256 for index in range(request.max_tokens))


@attrs.frozen(kw_only=True)
class Script:
    """The script of one request. Times in seconds of trio's clock; `fail_before` i raises instead of giving token i.

    `ahead` are the places in the queue that are reported in turn; the prompt is computed `chunk_tokens` at a time.
    """

    tokens: tuple[int, ...] | Callable[[GenerationRequest], Sequence[int]] = successors
    queue_s: float = 0.0
    prefill_s: float = 0.0
    token_s: float = 0.0
    cached_tokens: int = 0
    ahead: tuple[int, ...] = ()
    chunk_tokens: int = 1 << 20
    batch_tokens: int = 1
    refusal: TlserveError | None = None
    failure: BaseException | None = None
    fail_before: int = 0
    gates: Mapping[int, trio.Event] = attrs.field(factory=dict)


@attrs.define
class Counts:
    """The number of admitted requests by their end."""

    open: int = 0
    finished: int = 0
    aborted: int = 0
    failed: int = 0


INFO = BackendInfo(
    model_id="succ",
    context_tokens=64,
    vocabulary_size=256,
    embedding_size=4,
    system_fingerprint="fp_scripted",
    kernels="none",
)


class ScriptedBackend:
    """Play `script` (or its result for a request) for each admitted request."""

    def __init__(
        self, script: Script | Callable[[GenerationRequest], Script] = Script(), info: BackendInfo = INFO
    ) -> None:
        self._script = script
        self._info = info
        self._draining = False
        self._empty = trio.Event()
        self.counts = Counts()
        self.requests: list[GenerationRequest] = []
        self.embedding_requests: list[EmbeddingRequest] = []

    def info(self) -> BackendInfo:
        return self._info

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(
            active_sequences=self.counts.open,
            finished_aborted_total=self.counts.aborted,
            finished_failed_total=self.counts.failed,
        )

    @asynccontextmanager
    async def generate(self, request: GenerationRequest) -> AsyncIterator[ScriptedStream]:
        script = self._script if isinstance(self._script, Script) else self._script(request)
        self._admit(request, script)
        stream = ScriptedStream(request, script)
        try:
            yield stream
        finally:
            self._settle(stream)

    def _admit(self, request: GenerationRequest, script: Script) -> None:
        if self._draining:
            raise Draining("the scripted backend accepts nothing new")
        if script.refusal is not None:
            raise script.refusal
        if len(request.prompt) > self._info.context_tokens:
            raise ContextLengthExceeded(f"{len(request.prompt)} tokens in a context of {self._info.context_tokens}")
        self.requests.append(request)
        self.counts.open += 1

    def _settle(self, stream: ScriptedStream) -> None:
        self.counts.open -= 1
        self.counts.finished += stream.state == "finished"
        self.counts.failed += stream.state == "failed"
        self.counts.aborted += stream.state == "open"
        if self._draining and not self.counts.open:
            self._empty.set()

    async def embed(self, request: EmbeddingRequest) -> tuple[NDArray[np.float32], ...]:
        script = self._script if isinstance(self._script, Script) else Script()
        if script.refusal is not None:
            raise script.refusal
        self.embedding_requests.append(request)
        await trio.sleep(script.queue_s)
        return tuple(self._embed_one(tokens) for tokens in request.inputs)

    def _embed_one(self, tokens: tuple[int, ...]) -> NDArray[np.float32]:
        counts = np.bincount(np.array(tokens) % self._info.embedding_size, minlength=self._info.embedding_size)
        return (counts / np.linalg.norm(counts)).astype(np.float32)

    async def drain(self) -> None:
        self._draining = True
        if self.counts.open:
            await self._empty.wait()


class ScriptedStream:
    """The events of one request; `state` is "open" until its last event or its failure was given."""

    def __init__(self, request: GenerationRequest, script: Script) -> None:
        self.state = "open"
        self._request = request
        self._script = script
        self._events = _events(request, script)
        self._next = 0
        self._due = trio.current_time() + self._events[0][0]

    def __aiter__(self) -> ScriptedStream:
        return self

    async def __anext__(self) -> Sequence[GenerationEvent]:
        if self.state != "open":
            raise StopAsyncIteration
        batch = [await self._take()]
        while self.state == "open" and len(batch) < self._script.batch_tokens and self._is_ready():
            batch.append(await self._take())
        return batch

    def _index(self) -> int | None:
        """The index of the next event: `QUEUE` for `PrefillStarted`, that of a token, None for events in between."""
        event = self._events[self._next][1]
        if isinstance(event, TokenEvent):
            return event.index
        return QUEUE if isinstance(event, PrefillStarted) else None

    def _is_ready(self) -> bool:
        gate = self._gate()
        return self._due <= trio.current_time() and (gate is None or gate.is_set()) and not self._fails()

    def _fails(self) -> bool:
        return self._script.failure is not None and self._index() == self._script.fail_before

    async def _take(self) -> GenerationEvent:
        await trio.sleep_until(self._due)
        if (gate := self._gate()) is not None:
            await gate.wait()
        if self._fails():
            self.state = "failed"
            assert self._script.failure is not None
            raise self._script.failure
        _, event = self._events[self._next]
        self._next += 1
        if isinstance(event, TokenEvent) and event.finish is not None:
            self.state = "finished"
        else:
            self._due = max(self._due, trio.current_time()) + self._events[self._next][0]
        return event

    def _gate(self) -> trio.Event | None:
        index = self._index()
        return None if index is None else self._script.gates.get(index)


Timed = tuple[float, GenerationEvent]
"""The seconds between an event and the one before it, and the event."""


def _events(request: GenerationRequest, script: Script) -> tuple[Timed, ...]:
    return (*_queued(request, script), *_prefilled(request, script), *_drawn(request, script))


def _queued(request: GenerationRequest, script: Script) -> Iterator[Timed]:
    news = script.ahead if request.progress else ()
    for number, ahead in enumerate(news):
        yield script.queue_s / len(news) if number else 0.0, Progress(ahead=ahead)
    yield script.queue_s / max(1, len(news)), PrefillStarted(script.cached_tokens)


def _prefilled(request: GenerationRequest, script: Script) -> Iterator[Timed]:
    size = len(request.prompt)
    for start in range(0, size, script.chunk_tokens):
        end = min(size, start + script.chunk_tokens)
        if request.prompt_logprobs is not None and max(1, start) < end:
            yield 0.0, _prompt_logprobs(request, max(1, start), end)
        if request.progress:
            yield script.prefill_s * (end - start) / size, Progress(done=end)


def _prompt_logprobs(request: GenerationRequest, start: int, end: int) -> PromptLogprobs:
    tokens = (PromptToken(request.prompt[i], -i / 8, _likely(request.prompt[i], request)) for i in range(start, end))
    return PromptLogprobs(start, tuple(tokens))


def _likely(token: int, request: GenerationRequest) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob((token + rank) % 256, -0.25 - rank) for rank in range(request.prompt_logprobs or 0))


def _drawn(request: GenerationRequest, script: Script) -> Iterator[Timed]:
    tokens = script.tokens(request) if callable(script.tokens) else script.tokens
    wait_s = 0.0 if request.progress else script.prefill_s
    for index, drawn in enumerate(tokens[: request.max_tokens]):
        token = drawn
        while index < request.min_tokens and token in request.stop_ids:
            token = (token + 1) % 256
        finish = Finish.STOP if token in request.stop_ids else None
        if finish is None and index + 1 == request.max_tokens:
            finish = Finish.LENGTH
        yield wait_s, _event(request, index, token, finish)
        wait_s = script.token_s
        if finish is not None:
            return
    raise AssertionError("the script ended before a stop id or max_tokens")


def _event(request: GenerationRequest, index: int, token: int, finish: Finish | None) -> TokenEvent:
    if request.logprobs is None:
        return TokenEvent(index, token, finish=finish)
    top = tuple(TokenLogprob((token + rank) % 256, -0.25 - rank) for rank in range(request.logprobs))
    return TokenEvent(index, token, logprob=-0.25, top=top, finish=finish)


def _is_a_backend() -> Backend:
    """Let the type checker compare."""
    return ScriptedBackend()
