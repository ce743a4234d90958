"""A `generation.Backend` in the event loop whose tokens are a hash of (seed, choice, index, the WHOLE context); virtual time.

One lost, doubled, reordered or misplaced token changes every token after it. `answer` is the truth without an engine. The engine
makes steps of `step_s`: each gives every running sequence that has read its prompt one token. `hold` stops it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager

import attrs
import numpy as np
import trio
from numpy.typing import NDArray

from tlserve.errors import ContextLengthExceeded, Draining, EngineFailed, Overloaded
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

VOCABULARY = 251
BLOCK = 16
_MASK = (1 << 64) - 1

Step = list[GenerationEvent] | BaseException
"""The result of one step for one stream: events, or the error that ends it."""


def mix(value: int) -> int:
    """Scramble 64 bits (the finaliser of splitmix64)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def read(state: int, tokens: Iterable[int]) -> int:
    """Return the state after `tokens`; it depends on each of them and its place."""
    for token in tokens:
        state = (state * 0x5851F42D4C957F2D + token + 1) & _MASK
    return state


def key_of(request: GenerationRequest) -> int:
    """Everything except the context on which a token can depend."""
    chosen = (request.sampling, request.seed, request.choice, request.grammar, sorted(request.stop_ids))
    return read(request.min_tokens, repr(chosen).encode())


def draw(request: GenerationRequest, key: int, state: int, index: int, context_tokens: int) -> TokenEvent:
    """Return token `index`, drawn where the context has the hash `state`."""
    noise = mix(state ^ mix(key ^ index))
    token = noise % VOCABULARY
    if index < request.min_tokens and token in request.stop_ids:
        token = next(other for other in range(VOCABULARY) if other not in request.stop_ids)
    finish = None
    if token in request.stop_ids:
        finish = Finish.STOP
    elif index + 1 >= request.max_tokens or len(request.prompt) + index + 1 >= context_tokens:
        finish = Finish.LENGTH
    if request.logprobs is None:
        return TokenEvent(index, token, finish=finish)
    logprob = -(noise % 1000) / 7
    return TokenEvent(index, token, logprob, best_of(token, logprob, request.logprobs), finish)


def best_of(token: int, logprob: float, count: int) -> tuple[TokenLogprob, ...]:
    """Return `count` best tokens, `token` first."""
    return tuple(TokenLogprob((token + rank) % VOCABULARY, logprob - rank) for rank in range(count))


def answer(request: GenerationRequest, context_tokens: int = 4096) -> list[TokenEvent]:
    """Return all tokens of `request`, from the first that it has not emitted."""
    key, state = key_of(request), read(0, (*request.prompt, *request.emitted))
    events: list[TokenEvent] = []
    while not events or events[-1].finish is None:
        index = len(request.emitted) + len(events)
        events.append(draw(request, key, state, index, context_tokens))
        state = read(state, (events[-1].token,))
    return events


async def events_of(
    backend: Backend,
    request: GenerationRequest,
    at: Mapping[int, Callable[[], object]] | None = None,
    pause_s: float = 0.0,
) -> list[GenerationEvent]:
    """Return the events of `request` on `backend`; `at` has the functions to call after a number of events."""
    waiting = dict(at or {})
    events: list[GenerationEvent] = []
    async with backend.generate(request) as tokens:
        for count in [count for count in waiting if count <= 0]:
            waiting.pop(count)()
        async for batch in tokens:
            events += batch
            for count in [count for count in waiting if count <= len(events)]:
                waiting.pop(count)()
            await trio.sleep(pause_s)
    return events


def tokens_of(events: Iterable[GenerationEvent]) -> list[TokenEvent]:
    """Return the tokens among the events."""
    return [event for event in events if isinstance(event, TokenEvent)]


def prompt_logprobs(request: GenerationRequest) -> list[PromptLogprobs]:
    """Return those of the prompt, in runs of three."""
    best = request.prompt_logprobs or 0
    tokens = [
        PromptToken(token, value := -(read(0, request.prompt[: place + 1]) % 999) / 7, best_of(token, value, best))
        for place, token in enumerate(request.prompt)
    ]
    return [PromptLogprobs(start, tuple(tokens[start : start + 3])) for start in range(1, len(tokens), 3)]


@attrs.define(eq=False)
class Sequence:
    request: GenerationRequest
    send: trio.MemorySendChannel[Step]
    key: int
    state: int
    index: int
    unread: int
    started: bool = False


class HashBackend:
    """The engine; `run` must run. `cached`: prompt beginnings that it has read, by their hashes."""

    def __init__(
        self,
        *,
        model_id: str = "hash",
        numerics: str = "fp_hash",
        context_tokens: int = 4096,
        slots: int = 8,
        queue: int = 8,
        step_s: float = 0.02,
        prefill_tokens: int = 64,
        cache_blocks: int = 4096,
    ) -> None:
        self._info = BackendInfo(
            model_id=model_id,
            context_tokens=context_tokens,
            vocabulary_size=VOCABULARY,
            embedding_size=4,
            system_fingerprint=numerics,
            kernels="none",
            admission_limit=slots + queue,
        )
        self.slots, self.queue, self.step_s, self.prefill_tokens = slots, queue, step_s, prefill_tokens
        self.cache_blocks = cache_blocks
        self.cached: dict[int, None] = {}
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self.steps = self.aborted = self.generated = self.queries = self.hits = 0
        self.requests: list[GenerationRequest] = []
        self.ready = True
        self._failed = False
        self._draining = False
        self._work = trio.Event()
        self._go = trio.Event()
        self._go.set()
        self._none = trio.Event()
        self._none.set()

    # --- generation.Backend

    def info(self) -> BackendInfo:
        return attrs.evolve(self._info, ready=self.ready, not_ready_reason="" if self.ready else "told so")

    def statistics(self) -> EngineStatistics:
        return EngineStatistics(
            active_sequences=len(self.running),
            queue_depth=len(self.waiting),
            steps_total=self.steps,
            generated_tokens_total=self.generated,
            finished_aborted_total=self.aborted,
            prefix_cache_queries_total=self.queries,
            prefix_cache_hits_total=self.hits,
        )

    @asynccontextmanager
    async def generate(self, request: GenerationRequest) -> AsyncIterator[HashStream]:
        self._admit(request)
        send, receive = trio.open_memory_channel[Step](float("inf"))
        sequence = Sequence(request, send, key_of(request), 0, len(request.emitted), 0)
        self.waiting.append(sequence)
        self.requests.append(request)
        self._none = trio.Event()
        self._work.set()
        try:
            yield HashStream(receive)
        finally:
            self._remove(sequence)

    def _admit(self, request: GenerationRequest) -> None:
        if self._failed:
            raise EngineFailed("the engine failed")
        if self._draining:
            raise Draining("this engine accepts nothing new")
        if len(request.prompt) + len(request.emitted) + 1 > self._info.context_tokens:
            raise ContextLengthExceeded("the prompt is too long")
        if len(self.waiting) + len(self.running) >= self.slots + self.queue:
            raise Overloaded("the queue is full", retry_after_s=2)

    def _remove(self, sequence: Sequence) -> None:
        for place in (self.waiting, self.running):
            if sequence in place:
                place.remove(sequence)
                self.aborted += 1
        if not self.waiting and not self.running:
            self._none.set()

    async def embed(self, request: EmbeddingRequest) -> tuple[NDArray[np.float32], ...]:
        self._admit_embedding()
        await trio.sleep(self.step_s)
        await self._go.wait()
        return tuple(self._embed_one(tokens) for tokens in request.inputs)

    def _admit_embedding(self) -> None:
        if self._failed:
            raise EngineFailed("the engine failed")
        if self._draining:
            raise Draining("this engine accepts nothing new")

    def _embed_one(self, tokens: Iterable[int]) -> NDArray[np.float32]:
        state = read(0, tokens)
        vector = np.array([1 + (mix(state + place) % 1000) for place in range(4)], dtype=np.float64)
        return (vector / np.linalg.norm(vector)).astype(np.float32)

    async def drain(self) -> None:
        self._draining = True
        await self._none.wait()

    # --- what tests do with it

    def hold(self) -> None:
        """Stop in the middle of a step."""
        self._go = trio.Event()

    def go_on(self) -> None:
        self._go.set()

    def fail(self) -> None:
        """Die, and report it to every stream."""
        self._failed, self.ready = True, False
        for sequence in [*self.waiting, *self.running]:
            sequence.send.send_nowait(EngineFailed("the engine failed"))
        self.waiting.clear()
        self.running.clear()

    # --- the engine

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        task_status.started()
        while True:
            self._work = trio.Event()
            if not self.running and not self.waiting:
                await self._work.wait()
            await trio.sleep(self.step_s)
            await self._go.wait()
            self.step()

    def step(self) -> None:
        self.steps += 1
        while self.waiting and len(self.running) < self.slots:
            self.running.append(self.waiting.popleft())
        for ahead, sequence in enumerate(self.waiting):
            if sequence.request.progress:
                sequence.send.send_nowait([Progress(ahead)])
        room = self.prefill_tokens
        for sequence in list(self.running):
            room = self._advance(sequence, room)

    def _advance(self, sequence: Sequence, room: int) -> int:
        events: list[GenerationEvent] = [] if sequence.started else self._start(sequence)
        read_now = min(sequence.unread, room)
        sequence.unread -= read_now
        request = sequence.request
        if read_now and request.progress:
            events.append(Progress(done=len(request.prompt) - sequence.unread))
        if not sequence.unread:
            events.append(self._draw(sequence))
        if events:
            sequence.send.send_nowait(events)
        return room - read_now

    def _start(self, sequence: Sequence) -> list[GenerationEvent]:
        request = sequence.request
        sequence.started = True
        cached = self._find(request)
        sequence.state = read(0, (*request.prompt, *request.emitted))
        sequence.unread = len(request.prompt) + len(request.emitted) - cached
        told = [] if request.prompt_logprobs is None else prompt_logprobs(request)
        return [PrefillStarted(cached), *told]

    def _find(self, request: GenerationRequest) -> int:
        """Return how many tokens were cached, and cache them all."""
        tokens = (*request.prompt, *request.emitted)
        state = read(0, request.cache_namespace.encode())
        blocks = (tokens[start : start + BLOCK] for start in range(0, len(tokens) - BLOCK + 1, BLOCK))
        states = [state := read(state, block) for block in blocks]
        found = next((i for i, state in enumerate(states) if state not in self.cached), len(states))
        for state in reversed(states):
            self.cached.pop(state, None)
            self.cached[state] = None
        while len(self.cached) > self.cache_blocks:
            del self.cached[next(iter(self.cached))]
        cached = min(found * BLOCK, len(tokens) - 1)
        self.queries += len(tokens)
        self.hits += cached
        return cached

    def _draw(self, sequence: Sequence) -> TokenEvent:
        event = draw(sequence.request, sequence.key, sequence.state, sequence.index, self._info.context_tokens)
        sequence.state = read(sequence.state, (event.token,))
        sequence.index += 1
        self.generated += 1
        if event.finish is not None:
            self.running.remove(sequence)
            if not self.waiting and not self.running:
                self._none.set()
        return event


class HashStream:
    """The stream of one sequence."""

    def __init__(self, receive: trio.MemoryReceiveChannel[Step]) -> None:
        self._receive = receive
        self._ended = False

    def __aiter__(self) -> HashStream:
        return self

    async def __anext__(self) -> list[GenerationEvent]:
        if self._ended:
            raise StopAsyncIteration
        got = await self._receive.receive()
        if isinstance(got, BaseException):
            self._ended = True
            raise got
        self._ended = isinstance(got[-1], TokenEvent) and got[-1].finish is not None
        return got


def _is_a_backend() -> Backend:
    """Let the type checker compare."""
    return HashBackend()
