"""The requests that are being answered, by their owner and id: how far each is, and how one is cancelled.

Owns the rule when a request can be cancelled: until its answer is complete, or the last of it is being sent. A write is never
cut: a request that is cancelled during a write ends after it. Ids come from clients, so that an owner can have several requests
with one id; they are cancelled together. Holds nothing of a request that has ended. Does not know routes and documents.
"""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import attrs
import trio

from tlserve.errors import CancelledById
from tlserve.telemetry.request_log import RequestFigures


class RequestState(enum.Enum):
    """How far a request is: its body is read and encoded, it waits, its prompt is computed, or tokens come."""

    PREPARING = "preparing"
    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"


@attrs.define(eq=False)
class RequestWork:
    """The work for one request, which `cancel` ends; one block of `obeyed` can be inside another.

    `has_begun` says whether bytes of the answer were sent: only the innermost block of a stream can then still end it.
    """

    has_begun: Callable[[], bool]
    _scopes: list[trio.CancelScope] = attrs.field(factory=list)
    _is_writing: bool = False
    _is_cancelled: bool = False
    _is_told: bool = False
    _is_sealed: bool = False

    def cancel(self) -> bool:
        """Cancel the work, and return whether that is still possible."""
        if self._is_sealed or self._is_cancelled or not self._scopes or (self.has_begun() and len(self._scopes) == 1):
            return False
        self._is_cancelled = True
        if not self._is_writing:
            self._scopes[-1].cancel()
        return True

    @contextmanager
    def obeyed(self) -> Iterator[None]:
        """End the block when the request is cancelled; raises CancelledById then, or at once if it was before."""
        self._tell()
        with trio.CancelScope() as scope:
            self._scopes.append(scope)
            try:
                yield
            finally:
                self._scopes.pop()
        self._tell()

    async def uncut(self, writing: Awaitable[None]) -> None:
        """Await `writing`, which sends a part of the answer, to its end; raises CancelledById after it."""
        self._is_writing = True
        try:
            await writing
        finally:
            self._is_writing = False
        self._tell()

    def seal(self) -> None:
        """Let nothing cancel the request from now on: the last of its answer is sent."""
        self._is_sealed = True

    def complete(self) -> None:
        """Seal the request before its whole answer is sent; raises CancelledById if it was cancelled a moment before."""
        self._tell()
        self._is_sealed = True

    def _tell(self) -> None:
        """Raise CancelledById, once, if the request was cancelled."""
        if self._is_cancelled and not self._is_told and not self._is_sealed:
            self._is_told = True
            raise CancelledById()


@attrs.frozen(eq=False, kw_only=True)
class OpenRequest:
    """A request that is being answered. `created_s` is in seconds since 1970, `figures` are what is known of it so far."""

    id: str
    owner: str
    path: str
    created_s: float
    figures: Callable[[], RequestFigures]
    elapsed_ms: Callable[[], float]
    work: RequestWork

    @property
    def state(self) -> RequestState:
        """Return how far it is."""
        figures = self.figures()
        if figures.first_token_ms is not None:
            return RequestState.DECODE
        if figures.queue_ms is not None:
            return RequestState.PREFILL
        return RequestState.PREPARING if figures.prepared_ms is None else RequestState.QUEUED


class OpenRequests:
    """The requests that are being answered now, the oldest first."""

    def __init__(self) -> None:
        self._by_name: dict[tuple[str, str], list[OpenRequest]] = {}

    def __len__(self) -> int:
        """Return their number."""
        return sum(map(len, self._by_name.values()))

    @contextmanager
    def holding(self, request: OpenRequest) -> Iterator[None]:
        """Know the request for the block, which ends with CancelledById when it is cancelled."""
        name = request.owner, request.id
        self._by_name.setdefault(name, []).append(request)
        try:
            with request.work.obeyed():
                yield
        finally:
            self._by_name[name].remove(request)
            if not self._by_name[name]:
                del self._by_name[name]

    def of(self, owner: str) -> list[OpenRequest]:
        """Return the requests of an owner, the oldest first."""
        own = (request for (who, _), requests in self._by_name.items() if who == owner for request in requests)
        return sorted(own, key=lambda request: request.elapsed_ms(), reverse=True)

    def named(self, owner: str, name: str) -> list[OpenRequest]:
        """Return the requests of an owner with this id, the oldest first."""
        return list(self._by_name.get((owner, name), ()))
