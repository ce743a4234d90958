"""A model that can leave the memory, as a backend: loaded on first use or at the start, unloaded when idle or for another one.

Owns the life of its engine, and its state. What a load is, is an argument: it returns the weights, from which the backend is made
on the event loop. Does not know files and engines.

`run` is one loop:

    wait until a request wants the model
    load it: take the turn, make room, load in a thread          a failure ends the wait of its requests, nothing else
    serve: a nursery with the run of its backend                 until it has to leave and no request holds it
    unload: end the backend, release its memory in a thread
"""

from __future__ import annotations

import math
from contextlib import AbstractAsyncContextManager

import attrs
import numpy as np
import trio
from numpy.typing import NDArray

from tlserve.errors import (
    DrainCut,
    Draining,
    EngineFailed,
    ModelLoading,
    single_cause,
)
from tlserve.generation import (
    BackendInfo,
    EmbeddingRequest,
    EngineStatistics,
    GenerationRequest,
    ModelState,
    ModelStatus,
    TokenStream,
)
from tlserve.programs.residency.holds import Holds
from tlserve.programs.residency.loading import LoadedWeights, Loading, Plan, StoppableBackend
from tlserve.programs.residency.memory import ModelMemory
from tlserve.programs.residency.room import Occupant
from tlserve.programs.residency.statistics import continued, without_gauges


class ResidentModel:
    """The `HostedBackend` and the `Residency` of one model."""

    def __init__(self, plan: Plan, memory: ModelMemory, first: LoadedWeights | None = None) -> None:
        """`first`: the model as it was loaded at the start."""
        self._plan = plan
        self._memory = memory
        self._first = first
        self._info = plan.info
        self._idle_s = plan.idle_s
        self._backend: StoppableBackend | None = None
        self._holder: object = None
        self._past = EngineStatistics()
        self._leaving = False
        self._holds = Holds(self.name, most_waiting=plan.most_waiting, wait_s=plan.wait_s, changed=memory.changed)
        self._loading = Loading(plan, memory, self._holds, first)
        memory.add(self)

    # --- generation.Residency

    @property
    def can_leave(self) -> bool:
        """It can."""
        return True

    def status(self) -> ModelStatus:
        """Return the state, the memory, and how long the model stays if no request comes."""
        stays_s = math.inf if self._holds.held else max(0.0, self._leaves_at() - trio.current_time())
        return attrs.evolve(self._loading.record.status, memory_bytes=self._loading.reserved_bytes, leaves_in_s=stays_s)

    def held(self) -> AbstractAsyncContextManager[float]:
        """Wait until the model is loaded, and keep it so for the block."""
        return self._holds.hold()

    def keep_for(self, idle_s: float) -> None:
        """Let it leave after `idle_s` seconds without a request, until it is loaded again."""
        self._idle_s = idle_s
        self._memory.changed()

    # --- generation.Backend, for requests that hold the model

    def info(self) -> BackendInfo:
        """Describe the model: as it is, or as it was when it was loaded last."""
        return self._info if self._backend is None else self._backend.info()

    def statistics(self) -> EngineStatistics:
        """Return the figures of all engines that the model has had."""
        return self._past if self._backend is None else continued(self._past, self._backend.statistics())

    def generate(self, request: GenerationRequest) -> AbstractAsyncContextManager[TokenStream]:
        """Admit `request`, which holds the model."""
        return self._loaded().generate(request)

    async def embed(self, request: EmbeddingRequest) -> tuple[NDArray[np.float32], ...]:
        """Return the vectors of `request`, which holds the model."""
        return await self._loaded().embed(request)

    async def drain(self) -> None:
        """Admit nothing more, and return when no request holds the model or waits for it."""
        self.close()
        while self._holds.held or self._holds.waiting:
            await self._memory.wait_change()

    def _loaded(self) -> StoppableBackend:
        if self._backend is None:
            raise ModelLoading(f"the model {self.name!r} is not in memory; retry after a moment")
        return self._backend

    # --- HostedBackend

    def close(self) -> None:
        """Take no new request; those that wait for the model still get it."""
        self._holds.refuse(Draining)

    def cut(self) -> None:
        """End every open request with `DrainCut`, and the wait of those that wait."""
        self._holds.fail(DrainCut)
        if self._backend is not None:
            self._backend.cut()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Load and unload until cancelled; started at once, or with the model if it was loaded at the start."""
        if self._first is None:
            task_status.started()
        else:
            await self._serve(task_status)
        while True:
            while not self._holds.waiting:
                await self._memory.wait_change()
            async with self._memory.turn:
                self._first = await self._loading.load(self)
            if self._first is not None:
                await self._serve()

    # --- memory.LeavingModel

    @property
    def name(self) -> str:
        """Return the id of the model."""
        return self._info.model_id

    @property
    def memory_bytes(self) -> int:
        """Return what the model takes or has reserved."""
        return self._loading.reserved_bytes

    def occupant(self) -> Occupant | None:
        """Return the model as one that can leave, if it is in memory."""
        is_unloading = self._loading.record.state is ModelState.UNLOADING
        if self._loading.record.state is not ModelState.LOADED and not is_unloading:
            return None
        return Occupant(
            name=self.name,
            memory_bytes=self._loading.reserved_bytes,
            held=self._holds.held,
            last_used_s=self._holds.last_used_s,
            is_unloading=is_unloading,
        )

    def set_leaving(self, leaving: bool) -> None:
        """Let the requests that the model has finish and new ones wait, so that it leaves; or take that back."""
        if leaving == self._leaving:
            return
        self._leaving = leaving
        if self._loading.record.state is ModelState.LOADED:
            if leaving:
                self._holds.close()
            else:
                self._holds.open()
        self._memory.changed()

    # --- serve

    async def _serve(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the backend of the loaded weights until the model leaves; raises EngineFailed."""
        try:
            async with trio.open_nursery() as nursery:
                backend = self._take_backend()
                await nursery.start(backend.run)
                self._let_in()
                task_status.started()
                await self._wait_to_leave()
                self._holds.close()
                self._loading.enter(ModelState.UNLOADING)
                backend.stop()  # to be cancelled would leave a traceback that refers to the weights
        except BaseExceptionGroup as group:
            cause = single_cause(group)
            if not isinstance(cause, EngineFailed):
                raise
            message = cause.message
            self._holds.fail(lambda: EngineFailed(message))
            raise cause from cause.__cause__
        await self._forget()

    def _take_backend(self) -> StoppableBackend:
        """Make the backend; only that and the holder keep the weights then."""
        assert self._first is not None
        backend, self._holder = self._first.make(), self._first.holder
        self._backend, self._first = backend, None
        return backend

    def _let_in(self) -> None:
        self._loading.enter(ModelState.LOADED)
        self._holds.last_used_s = trio.current_time()
        self._idle_s = self._plan.idle_s
        if not self._leaving:
            self._holds.open()

    async def _wait_to_leave(self) -> None:
        while True:
            if self._holds.held:
                await self._memory.wait_change()
            elif self._leaving or trio.current_time() >= self._leaves_at():
                return
            else:
                with trio.move_on_at(self._leaves_at()):
                    await self._memory.wait_change()

    def _leaves_at(self) -> float:
        return self._holds.last_used_s + self._idle_s

    async def _forget(self) -> None:
        """Drop the backend, which has ended, but not what it counted."""
        assert self._backend is not None
        self._past = continued(self._past, without_gauges(self._backend.statistics()))
        self._info = attrs.evolve(self._backend.info(), ready=True, not_ready_reason="")
        self._loading.record.note_unload(self._loading.reserved_bytes)
        owned = [self._holder]
        self._backend = self._holder = None
        await self._loading.give_up(ModelState.UNLOADED, owned)
