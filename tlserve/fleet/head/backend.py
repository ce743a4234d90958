"""The `Backend` that answers from the nodes of a fleet.

Owns the way of one request through the head: permit, placement, stream, end. Knows nothing of links and transports.

The client's task reads the stream: a node that is lost is replaced when the client needs the next event. Events that the client
has had never come again.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import attrs
import numpy as np
import trio
from numpy.typing import NDArray

from tlserve.admission.permits import Admission
from tlserve.errors import ContextLengthExceeded, DrainCut, Draining, EngineFailed, TlserveError
from tlserve.fleet.head.head import Head
from tlserve.fleet.head.limits import DEFAULT_LIMITS, FleetLimits
from tlserve.fleet.head.member import Member
from tlserve.fleet.head.node_claims import check_vectors
from tlserve.fleet.head.overview import FleetModel, chosen_numerics, describe, group_of, total
from tlserve.fleet.head.placer import TRY_ANOTHER, Placer, call, worst
from tlserve.fleet.head.prefix_index import chain_of
from tlserve.fleet.head.session import Session, wall_passed
from tlserve.fleet.link import NodeDirectory
from tlserve.generation import (
    BackendInfo,
    EmbeddingRequest,
    EngineStatistics,
    GenerationEvent,
    GenerationRequest,
    TokenStream,
)
from tlserve.telemetry.fleet_figures import FleetFigures

log = logging.getLogger("tlserve.fleet")


class FleetBackend:
    """Serve `model` from the nodes of `directory`; `run` must run. Several heads may share the nodes."""

    def __init__(
        self,
        directory: NodeDirectory,
        model: FleetModel,
        limits: FleetLimits = DEFAULT_LIMITS,
        *,
        head_id: str | None = None,
    ) -> None:
        """`head_id` must differ each time that a head starts; None draws it."""
        self._model = model
        self._limits = limits
        self._head = Head(directory, model, limits, head_id)
        self._admission = Admission(limits.admission, lambda: self.statistics().queue_depth)
        self._scope = trio.CancelScope()

    # --- generation.Backend

    def info(self) -> BackendInfo:
        """Describe what the ready nodes serve, or why there are none."""
        info = describe(self._model, tuple(self._head.members.values()), self._limits.admission)
        return (
            info
            if self._head.is_running
            else attrs.evolve(info, ready=False, not_ready_reason="the head is not running")
        )

    def statistics(self) -> EngineStatistics:
        """Return the sums of the nodes' figures."""
        return total(self._head.retired, self._head.members.values())

    def figures(self) -> FleetFigures:
        """Return the number of nodes in each state, and of losses and moves."""
        draining = [member for member in self.members if member.is_draining]
        ready = [member for member in self.members if not member.why_not(self._model.model_id)]
        return FleetFigures(
            nodes_ready=len(ready),
            nodes_draining=len(draining),
            nodes_away=len(self.members) - len(ready) - len(draining),
            losses_total=self._head.losses,
            moves_total=self._head.placer.moves,
        )

    @property
    def admitted(self) -> int:
        """Requests that run or wait here."""
        return self._admission.inside

    @property
    def members(self) -> tuple[Member, ...]:
        """Return the nodes that the directory lists."""
        return tuple(member for member in self._head.members.values() if not member.is_gone)

    def node_of(self, request_id: str) -> str:
        """Return the node that has the open request with this id, or "" if none has."""
        placements = (
            session.placement
            for session in self._head.sessions.values()
            if session.transcript.request.request_id == request_id
        )
        return next((placement.member.node for placement in placements if placement is not None), "")

    @asynccontextmanager
    async def generate(self, request: GenerationRequest) -> AsyncIterator[TokenStream]:
        """Admit `request` and stream its tokens; leaving the block ends a request that has not ended on its node."""
        with self._admission.permit():
            session = self._head.open_session(self._fit(request))
            try:
                await self._head.placer.place(session)
                yield FleetTokenStream(session, self._head.placer)
            finally:
                try:
                    self._remember(session)
                finally:
                    await self._head.close_session(session)

    def _fit(self, request: GenerationRequest) -> GenerationRequest:
        """Limit the answer to the context that every node has: it must not depend on the node that ends it."""
        info = self.info()
        room = info.context_tokens - len(request.prompt)
        if room < 1 and info.ready:
            length = f"it has {len(request.prompt)} tokens"
            raise ContextLengthExceeded.of_prompt(length, info.context_tokens, param="messages")
        return attrs.evolve(request, max_tokens=min(request.max_tokens, room)) if info.ready else request

    def _remember(self, session: Session) -> None:
        """Note that the node's cache also has the answer: the next turn of the conversation begins with it."""
        if session.index is not None:
            request = session.transcript.request
            session.index.insert(chain_of((*request.prompt, *session.transcript.emitted), request.cache_namespace))

    async def embed(self, request: EmbeddingRequest) -> tuple[NDArray[np.float32], ...]:
        """Encode on the least loaded node; on another one if that node is lost."""
        with self._admission.permit():
            with trio.move_on_after(self._limits.wall_s):
                return await self._embed(request)
            raise wall_passed(self._limits.wall_s)

    async def _embed(self, request: EmbeddingRequest) -> tuple[NDArray[np.float32], ...]:
        refusals: list[TlserveError] = []
        for member in self._head.placer.ranked_for_embedding()[: self._limits.moves + 1]:
            try:
                return await self._embed_on(member, request)
            except TRY_ANOTHER as refusal:
                refusals.append(refusal)
            except TlserveError as error:
                log.info("node %s does not encode: %s", member.node, error.message)
                raise self._head.placer.end_of(error) from None
        raise worst(refusals)

    async def _embed_on(self, member: Member, request: EmbeddingRequest) -> tuple[NDArray[np.float32], ...]:
        member.embeddings += 1
        try:
            vectors = await call(member, lambda: member.link.embed(request), self._limits.wall_s)
            check_vectors(vectors, request, member.info.backend.embedding_size if member.info else 0)
            return vectors
        finally:
            member.embeddings -= 1

    async def drain(self) -> None:
        """Admit nothing more, and return when every admitted request has ended. The nodes continue."""
        self.close()
        await self._admission.wait_empty()

    def close(self) -> None:
        """Admit nothing more: new requests raise `Draining`; open requests continue."""
        self._admission.close(Draining)

    # --- its life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch the nodes until `stop` or cancellation; open requests then end with an error."""
        with self._scope:
            try:
                await self._head.run(task_status=task_status)
            finally:
                self._admission.close(lambda: EngineFailed("the head of the fleet has ended"))
                self.cut()

    async def wait_ready(self, nodes: int = 1) -> None:
        """Return when `nodes` nodes can answer."""
        while len(self._ready()) < nodes:
            await self._head.placer.wait_change()

    def _ready(self) -> list[Member]:
        members = self._head.members.values()
        return group_of(self._model, members, chosen_numerics(self._model, members))

    def stop(self) -> None:
        """Let `run` return."""
        self._scope.cancel()

    def cut(self) -> None:
        """End every open request with `DrainCut`."""
        for session in list(self._head.sessions.values()):
            self._head.end(session, DrainCut())


class FleetTokenStream:
    """The `TokenStream` of one session."""

    def __init__(self, session: Session, placer: Placer) -> None:
        self._session = session
        self._placer = placer

    def __aiter__(self) -> FleetTokenStream:
        return self

    async def __anext__(self) -> Sequence[GenerationEvent]:
        session = self._session
        while not session.inbox:
            if session.error is not None:
                raise session.error
            if session.is_over:
                raise StopAsyncIteration
            if session.placement is not None:
                await session.wait_news()
                continue
            try:
                await self._placer.replace(session)
            except TlserveError as error:
                session.fail(error)
        return session.take_all()
