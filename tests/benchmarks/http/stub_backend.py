"""A `generation.Backend` that emits tokens at once, so that everything but the engine is measured.

Owns the tokens that it makes up: letters, one id each, until `max_tokens`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import numpy as np
import trio
from numpy.typing import NDArray

from tlserve.generation import (
    Backend,
    BackendInfo,
    EmbeddingRequest,
    EngineStatistics,
    Finish,
    GenerationEvent,
    GenerationRequest,
    PrefillStarted,
    TokenEvent,
)

MODEL_ID = "stub"
CONTEXT_TOKENS = 1 << 20
_FIRST_LETTER = ord("a")
_LETTERS = 26


class StubBackend:
    """Give the tokens of every request as fast as they are read, `batch_tokens` in each batch."""

    def __init__(self, batch_tokens: int = 1) -> None:
        self._batch_tokens = batch_tokens

    def info(self) -> BackendInfo:
        """Return the facts of a backend that is ready."""
        return BackendInfo(
            model_id=MODEL_ID,
            context_tokens=CONTEXT_TOKENS,
            vocabulary_size=256,
            embedding_size=1,
            system_fingerprint="fp_stub",
            kernels="none",
        )

    def statistics(self) -> EngineStatistics:
        """Return zeros: there is no engine."""
        return EngineStatistics()

    @asynccontextmanager
    async def generate(self, request: GenerationRequest) -> AsyncIterator[AsyncIterator[Sequence[GenerationEvent]]]:
        """Admit every request."""
        yield _StubStream(request.max_tokens, self._batch_tokens)

    async def embed(self, request: EmbeddingRequest) -> tuple[NDArray[np.float32], ...]:
        """Return the one unit vector of one dimension for every input."""
        await trio.lowlevel.checkpoint()
        return tuple(np.ones(1, dtype=np.float32) for _ in request.inputs)

    async def drain(self) -> None:
        """Return at once: there is nothing to wait for."""
        await trio.lowlevel.checkpoint()


class _StubStream:
    def __init__(self, tokens: int, batch_tokens: int) -> None:
        self._tokens = tokens
        self._batch_tokens = batch_tokens
        self._given = -1  # `PrefillStarted` comes first

    def __aiter__(self) -> _StubStream:
        return self

    async def __anext__(self) -> Sequence[GenerationEvent]:
        await trio.lowlevel.checkpoint()  # as every wait for tokens is
        if self._given < 0:
            self._given = 0
            return [PrefillStarted()]
        if self._given == self._tokens:
            raise StopAsyncIteration
        first = self._given
        self._given = min(first + self._batch_tokens, self._tokens)
        return [self._event(index) for index in range(first, self._given)]

    def _event(self, index: int) -> TokenEvent:
        finish = Finish.LENGTH if index + 1 == self._tokens else None
        return TokenEvent(index, _FIRST_LETTER + index % _LETTERS, finish=finish)


def _is_a_backend() -> Backend:
    """Let the type checker compare the class with the protocol."""
    return StubBackend()
