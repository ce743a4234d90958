"""The choices of one request on their way: admitted together, read as they become ready.

Owns the permits (each choice has its own; all are admitted or none is), leaving the backend as soon as a choice has ended, and
the joining of what is ready at the same time. Refuses to know what becomes of the deltas.

The nursery of several choices (one choice needs none):

    open_choices
    `- _pump, one a choice      its backend's block; deltas, or the error that ended it, go into the channel
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import attrs
import trio

from tlserve.chat.output_reader import Delta
from tlserve.endpoints.planning import Choice
from tlserve.errors import single_cause
from tlserve.generation import Backend, TokenStream

Ready = list[tuple[int, list[Delta]]]
"""What became ready together: the index of a choice, and what it gained. The list may be empty of text: it started."""


class Batches(Protocol):
    """What the choices of a request gain, until all have ended; `ended` once the last batch was given."""

    @property
    def ended(self) -> bool:
        """Say whether nothing follows."""

    def __aiter__(self) -> Batches:
        """Return itself."""

    async def __anext__(self) -> Ready:
        """Return what became ready together; raises what the backend raises."""


@asynccontextmanager
async def open_choices(backend: Backend, choices: Sequence[Choice]) -> AsyncIterator[Batches]:
    """Admit all `choices` and give what they gain, until all have ended; leaving the block aborts what is left.

    Raises what the backend raises, on entering as while reading.
    """
    if len(choices) == 1:
        async with backend.generate(choices[0].request) as tokens:
            yield _One(choices[0], tokens)
        return
    try:
        async with trio.open_nursery() as nursery:
            send, receive = trio.open_memory_channel[_Gained](len(choices))
            for index, choice in enumerate(choices):
                await nursery.start(_pump, backend, index, choice, send)
            yield _Several(receive, len(choices))
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        cause = single_cause(group)
        raise cause from cause.__cause__


@attrs.frozen(eq=False)
class _Gained:
    index: int
    deltas: list[Delta] = attrs.field(factory=list)
    ended: bool = False
    error: Exception | None = None


async def _pump(
    backend: Backend,
    index: int,
    choice: Choice,
    send: trio.MemorySendChannel[_Gained],
    *,
    task_status: trio.TaskStatus[None],
) -> None:
    """Relay one choice; what the backend refuses on entering is raised to whoever starts this."""
    async with backend.generate(choice.request) as tokens:
        task_status.started()
        try:
            async for batch in tokens:
                await send.send(_Gained(index, choice.reading.feed(batch), choice.reading.ended))
                if choice.reading.ended:
                    return
            check_ended(choice)
        except Exception as error:
            await send.send(_Gained(index, error=error))


class _One:
    """The batches of one choice."""

    def __init__(self, choice: Choice, tokens: TokenStream) -> None:
        self._choice = choice
        self._tokens = tokens

    @property
    def ended(self) -> bool:
        return self._choice.reading.ended

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
        return [(0, self._choice.reading.feed(batch))]


class _Several:
    """What the pumps of all choices sent, joined where it is ready together."""

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
        """Return `gained` and all that is ready behind it; an error ends the list and is raised after it."""
        ready: Ready = []
        while gained.error is None:
            ready.append((gained.index, gained.deltas))
            self._open -= gained.ended
            try:
                gained = self._receive.receive_nowait()
            except trio.WouldBlock:
                return ready
        self._error = gained.error
        return ready


def check_ended(choice: Choice) -> None:
    """Raise if the backend ended a choice without saying why."""
    if not choice.reading.ended:
        raise RuntimeError("the backend ended an answer without saying why")
