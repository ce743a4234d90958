"""The choices of one request while they are generated: admitted together, read as they become ready.

Owns the permits (each choice has its own; all are admitted or none is), leaving the backend as soon as a choice has ended or its
deadline has passed, and joining the parts that are ready at the same time. Does not know what the parts are for.

The nursery of several choices, or of one with a deadline, which must be able to end while a write is under way (one choice
without a deadline needs none):

    open_choices
    `- _pump, one a choice      its backend's block; parts, or the error that ended it, go into the channel
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import attrs
import trio

from tlserve.endpoints.answers.answer_plan import Choice
from tlserve.endpoints.answers.deadline import NO_DEADLINE, Deadline
from tlserve.endpoints.answers.token_reader import AnswerPart, Ready
from tlserve.errors import single_cause
from tlserve.generation import Backend, TokenStream


class Batches(Protocol):
    """The new parts of a request's choices, until all have ended; `ended` is true after the last batch."""

    @property
    def ended(self) -> bool:
        """Say whether nothing follows."""

    def __aiter__(self) -> Batches:
        """Return itself."""

    async def __anext__(self) -> Ready:
        """Return what became ready together; raises what the backend raises."""


@asynccontextmanager
async def open_choices(
    backend: Backend, choices: Sequence[Choice], deadline: Deadline = NO_DEADLINE
) -> AsyncIterator[Batches]:
    """Admit all `choices` and yield their parts until all have ended; leaving the block aborts the rest.

    Raises the errors of the backend and DeadlineExceeded, both on entering and while reading.
    """
    if len(choices) == 1 and deadline.at == math.inf:
        async with backend.generate(choices[0].request) as tokens:
            yield _One(choices[0], tokens)
        return
    deadline.check()
    try:
        async with trio.open_nursery() as nursery:
            send, receive = trio.open_memory_channel[_Gained](len(choices))
            for index, choice in enumerate(choices):
                await nursery.start(_pump, backend, _Place(index, choice, deadline), send)
            yield _Several(receive, len(choices))
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        cause = single_cause(group)
        raise cause from cause.__cause__


@attrs.frozen(eq=False)
class _Gained:
    index: int
    parts: list[AnswerPart] = attrs.field(factory=list)
    ended: bool = False
    error: Exception | None = None


@attrs.frozen(eq=False)
class _Place:
    """One choice, its index, and its deadline."""

    index: int
    choice: Choice
    deadline: Deadline


async def _pump(
    backend: Backend, place: _Place, send: trio.MemorySendChannel[_Gained], *, task_status: trio.TaskStatus[None]
) -> None:
    """Relay one choice; an error on entering the backend is raised to the starter of this task.

    A later error is sent after the backend was left, because the reader may be slow to receive it.
    """
    admitted = False
    try:
        with place.deadline.obeyed():
            async with backend.generate(place.choice.request) as tokens:
                admitted = True
                task_status.started()
                await _relay(tokens, place, send)
    except Exception as error:
        if not admitted:
            raise
        await send.send(_Gained(place.index, error=error))


async def _relay(tokens: TokenStream, place: _Place, send: trio.MemorySendChannel[_Gained]) -> None:
    reader = place.choice.reader
    async for batch in tokens:
        await send.send(_Gained(place.index, reader.feed(batch), reader.ended))
        if reader.ended:
            return
    check_ended(place.choice)


class _One:
    """The batches of one choice."""

    def __init__(self, choice: Choice, tokens: TokenStream) -> None:
        self._choice = choice
        self._tokens = tokens

    @property
    def ended(self) -> bool:
        return self._choice.reader.ended

    def __aiter__(self) -> _One:
        return self

    async def __anext__(self) -> Ready:
        if self.ended:
            raise StopAsyncIteration
        try:
            batch = await anext(self._tokens)
        except StopAsyncIteration:
            check_ended(self._choice)
            raise
        return [(0, self._choice.reader.feed(batch))]


class _Several:
    """The batches of several choices, from their pumps; batches that are ready together are joined."""

    def __init__(self, receive: trio.MemoryReceiveChannel[_Gained], count: int) -> None:
        self._receive = receive
        self._open = count
        self._error: Exception | None = None

    @property
    def ended(self) -> bool:
        return not self._open and self._error is None

    def __aiter__(self) -> _Several:
        return self

    async def __anext__(self) -> Ready:
        if self._error is None and self._open:
            ready = self._take(await self._receive.receive())
            if ready:
                return ready
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    def _take(self, gained: _Gained) -> Ready:
        """Return `gained` and all that is ready after it; an error ends the list and is raised after it."""
        ready: Ready = []
        while gained.error is None:
            ready.append((gained.index, gained.parts))
            self._open -= gained.ended
            try:
                gained = self._receive.receive_nowait()
            except trio.WouldBlock:
                return ready
        self._error = gained.error
        return ready


def check_ended(choice: Choice) -> None:
    """Raise if the backend ended a choice without a reason."""
    if not choice.reader.ended:
        raise RuntimeError("the backend ended an answer without a reason")
