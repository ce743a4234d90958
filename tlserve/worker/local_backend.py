"""The `Backend` that runs the engine on one thread of this process.

Owns the tickets of open requests, their channels, and the life of the engine thread. Knows nothing of HTTP and text.

The nursery of `run`:

    run
    |- the engine's loop, in a thread          ends: Stop, cancellation, or its own failure
    |- the program that checks grammars, once the first grammar comes
    `- _stop_when_cancelled                    wakes an idle engine, which is blocked on its mailbox
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import attrs
import numpy as np
import trio
from numpy.typing import NDArray

from tlserve.admission.permits import Admission
from tlserve.engine.events import EmbeddingReady, Failed
from tlserve.errors import ContextLengthExceeded, DrainCut, Draining, EngineFailed, TlserveError
from tlserve.generation import (
    BackendInfo,
    EmbeddingRequest,
    EngineStatistics,
    GenerationRequest,
    GrammarCompiler,
    Progress,
    TokenConstraint,
    TokenStream,
)
from tlserve.worker.engine_thread import (
    Abort,
    Batch,
    Command,
    Embed,
    Ended,
    EngineThread,
    Generate,
    Report,
    SteppingEngine,
    Stop,
    Ticket,
    is_progress,
)
from tlserve.worker.grammar_checks import CheckProgram
from tlserve.worker.grammars import GrammarLimits, Grammars
from tlserve.worker.mailbox import Mailbox
from tlserve.worker.token_stream import LocalTokenStream, OutcomeReader

log = logging.getLogger("tlserve.worker")

_PROGRESS_BATCHES = 64  # progress batches that a client may leave unread


@attrs.frozen(kw_only=True)
class BackendLimits:
    """The limits of a local backend; times in seconds.

    `admission`: requests admitted at once. `embeddings`: embedding sequences that the engine gets at once, of all requests
    together; the others wait here, so that thousands of inputs do not delay a chat.
    """

    admission: int
    embeddings: int = 16
    queue_deadline_s: float = 30.0
    heartbeat_stale_s: float = 30.0
    grammars: GrammarLimits = attrs.field(factory=GrammarLimits)


class LocalBackend:
    """Serve `generation.Backend` from one engine. Make it on the event loop, then `run` it."""

    def __init__(
        self,
        engine: SteppingEngine,
        info: BackendInfo,
        limits: BackendLimits,
        compiler: GrammarCompiler | None = None,
        checks: CheckProgram | None = None,
    ) -> None:
        """Without a `compiler`, requests with a grammar are refused."""
        self._info = info
        self._grammars = Grammars(compiler, limits.grammars, checks)
        self._limits = limits
        self._admission = Admission(limits.admission, lambda: self._statistics.queue_depth)
        self._embedding_places = trio.CapacityLimiter(limits.embeddings)
        self._open: dict[Ticket, trio.MemorySendChannel[Batch]] = {}
        self._tickets = itertools.count(1)
        self._statistics = engine.statistics()
        self._mailbox: Mailbox[Command, Report] = Mailbox(self._deliver)
        self._thread: EngineThread | None = EngineThread(engine, self._mailbox)
        self._started = False
        self._failure: EngineFailed | None = None

    # --- generation.Backend

    def info(self) -> BackendInfo:
        """Describe what is served, and whether the engine thread runs and its heartbeat is recent."""
        reason = self._not_ready_reason()
        return attrs.evolve(self._info, ready=not reason, not_ready_reason=reason)

    def statistics(self) -> EngineStatistics:
        """Return the engine's figures after its latest step."""
        return self._statistics

    @property
    def admitted(self) -> int:
        """Requests that run or wait here."""
        return self._admission.inside

    @asynccontextmanager
    async def generate(self, request: GenerationRequest) -> AsyncIterator[TokenStream]:
        """Admit `request` and stream its tokens; leaving the block aborts a request that has not ended."""
        self._check_context(len(request.prompt), "messages")
        constraint = await self._constraint(request)
        with self._admission.permit(), self._channel(_most_batches(request)) as (ticket, receive):
            self._mailbox.put(Generate(ticket, request, constraint))
            stream = LocalTokenStream(OutcomeReader(receive, self._queue_deadline()))
            try:
                yield stream
            finally:
                if not stream.engine_is_done:
                    self._mailbox.put(Abort(ticket))

    async def _constraint(self, request: GenerationRequest) -> TokenConstraint | None:
        """Return the constraint of the request's grammar; a request that would be refused compiles nothing."""
        if request.grammar is None:
            return None
        self._admission.check()
        return await self._grammars.start(request.grammar, request.stop_ids, request.tenant, request.cache_owner)

    async def embed(self, request: EmbeddingRequest) -> tuple[NDArray[np.float32], ...]:
        """Encode every input as a sequence of its own; all of them share one permit."""
        for tokens in request.inputs:
            self._check_context(len(tokens), "input")
        with self._admission.permit():
            return await self._embed_all(request)

    async def _embed_all(self, request: EmbeddingRequest) -> tuple[NDArray[np.float32], ...]:
        vectors: dict[int, NDArray[np.float32]] = {}
        failures: list[TlserveError] = []

        async def encode(index: int, tokens: tuple[int, ...]) -> None:
            try:
                async with self._embedding_places:
                    vectors[index] = await self._embed_one(tokens, request.priority)
            except TlserveError as error:  # one input's failure is the request's
                failures.append(error)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for index, tokens in enumerate(request.inputs):
                nursery.start_soon(encode, index, tokens)
        if failures:
            raise failures[0]
        return tuple(vectors[index] for index in range(len(request.inputs)))

    async def _embed_one(self, tokens: tuple[int, ...], priority: int) -> NDArray[np.float32]:
        with self._channel(2) as (ticket, receive):
            self._mailbox.put(Embed(ticket, tokens, priority))
            reader = OutcomeReader(receive, self._queue_deadline())
            try:
                while True:
                    last = (await reader.next_batch())[-1]
                    if isinstance(last, EmbeddingReady):
                        return last.vector
                    if isinstance(last, Failed | Ended):
                        raise last.error
            finally:
                self._mailbox.put(Abort(ticket))

    async def drain(self) -> None:
        """Admit nothing more, and return when every admitted request has ended."""
        self.close()
        await self._admission.wait_empty()

    def close(self) -> None:
        """Admit nothing more: new requests raise `Draining`; open requests continue."""
        if self._failure is None:
            self._admission.close(Draining)

    # --- the life of the engine

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the engine until `stop` or cancellation; raises `EngineFailed`, after every open request got it."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stop_when_cancelled)
            nursery.start_soon(self._grammars.run)
            self._started = True
            task_status.started()
            try:
                await self._run_engine()
            except Exception as error:
                log.exception("the engine failed")
                self._fail(error)
            finally:
                self._started = False
                nursery.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    async def _run_engine(self) -> None:
        """Run the thread; its engine, and with it the memory of the model, is not kept afterwards."""
        assert self._thread is not None
        run, self._thread = self._thread.run, None
        await trio.to_thread.run_sync(run, limiter=trio.CapacityLimiter(1))

    def stop(self) -> None:
        """Let `run` return after the current step."""
        self._mailbox.put(Stop())

    def cut(self) -> None:
        """End every open request with `DrainCut`."""
        self._end_all(DrainCut)

    async def _stop_when_cancelled(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            self._mailbox.put(Stop())

    def _fail(self, error: Exception) -> None:
        message = f"the engine failed and every open request ended: {type(error).__name__}"
        self._failure = EngineFailed(message)
        self._admission.close(lambda: EngineFailed(message))
        self._end_all(lambda: EngineFailed(message))

    def _end_all(self, make_error: Callable[[], TlserveError]) -> None:
        for ticket in tuple(self._open):
            self._send(ticket, (Ended(make_error()),))
            del self._open[ticket]  # later reports of the engine for it are not delivered

    # --- channels

    @contextmanager
    def _channel(self, capacity: int) -> Iterator[tuple[Ticket, trio.MemoryReceiveChannel[Batch]]]:
        ticket = next(self._tickets)
        send, receive = trio.open_memory_channel[Batch](capacity)
        self._open[ticket] = send
        with send, receive:
            try:
                yield ticket, receive
            finally:
                self._open.pop(ticket, None)

    def _deliver(self, report: Report) -> None:
        self._statistics = report.statistics
        for ticket, outcomes in report.outcomes:
            self._send(ticket, outcomes)

    def _send(self, ticket: Ticket, outcomes: Batch) -> None:
        channel = self._open.get(ticket)
        if channel is None:  # its consumer has left, and the abort is in the mailbox
            return
        if (
            isinstance(outcomes[0], Progress)
            and is_progress(outcomes)
            and channel.statistics().current_buffer_used >= _PROGRESS_BATCHES
        ):
            return  # nobody reads: its place in the queue may change many times, and its answer must still fit
        channel.send_nowait(outcomes)

    # --- decisions

    def _queue_deadline(self) -> float:
        return trio.current_time() + self._limits.queue_deadline_s

    def _check_context(self, prompt_tokens: int, param: str) -> None:
        if prompt_tokens > self._info.context_tokens:
            length = f"it has {prompt_tokens} tokens"
            raise ContextLengthExceeded.of_prompt(length, self._info.context_tokens, param=param)

    def _not_ready_reason(self) -> str:
        if self._failure is not None:
            return self._failure.message
        if not self._started:
            return "the engine is not running"
        busy_s = self._mailbox.busy_s()
        if busy_s > self._limits.heartbeat_stale_s:
            return f"the engine's current step has taken {math.floor(busy_s)} s"
        return ""


def _most_batches(request: GenerationRequest) -> int:
    """Return the largest number of batches of a request: its start, its tokens, its end, and what else it asked for."""
    prompt = 0 if request.prompt_logprobs is None else len(request.prompt)
    return request.max_tokens + 2 + prompt + (_PROGRESS_BATCHES if request.progress else 0)
