"""The load of one model: room, the work in a thread, and what became of it.

Owns the memory that the model has reserved, and its record. A failure ends the wait of the requests that wait now, and nothing
else: the next request tries again. What a load does is an argument. Does not know files and engines.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Protocol

import attrs
import trio

from tlserve.errors import ModelTooLarge
from tlserve.generation import BackendInfo, ModelState
from tlserve.programs.hosted_model import HostedBackend
from tlserve.programs.residency.holds import Holds
from tlserve.programs.residency.memory import LeavingModel, ModelMemory
from tlserve.programs.residency.record import LoadRecord
from tlserve.programs.residency.release import release_memory


class StoppableBackend(HostedBackend, Protocol):
    """A backend whose `run` returns when it is told to, and then refers to no weights."""

    def stop(self) -> None:
        """Let `run` return; no request is open."""


@attrs.frozen(kw_only=True, eq=False)
class LoadedWeights:
    """A model in memory: what it takes, and its backend, made on the event loop.

    `holder` refers to all of its memory. Once the backend has ended, nothing else does.
    """

    memory_bytes: int
    holder: object
    make: Callable[[], StoppableBackend]


@attrs.frozen(kw_only=True, eq=False)
class Plan:
    """What is known of a model before it is loaded.

    `load` runs in a thread. `expected_bytes`: what the first load needs, as far as its files say. `idle_s`: how long it stays
    without a request.
    """

    info: BackendInfo
    load: Callable[[], LoadedWeights]
    expected_bytes: int
    idle_s: float = math.inf
    most_waiting: int = 128
    wait_s: float = 60.0


class Loading:
    """The loads of one model; `reserved_bytes` is what it takes now, or has reserved for a load under way."""

    def __init__(self, plan: Plan, memory: ModelMemory, holds: Holds, first: LoadedWeights | None) -> None:
        """`first`: the model as it was loaded at the start."""
        self._plan = plan
        self._memory = memory
        self._holds = holds
        self._needed_bytes = plan.expected_bytes if first is None else first.memory_bytes
        self.reserved_bytes = 0 if first is None else first.memory_bytes
        self.record = LoadRecord(plan.info.model_id, loads=0 if first is None else 1)

    def enter(self, state: ModelState) -> None:
        """Note a new state, and wake those that wait for one."""
        self.record.enter(state)
        self._memory.changed()

    async def load(self, model: LeavingModel) -> LoadedWeights | None:
        """Return the weights, or None if nobody waits for them now, or their load failed."""
        try:
            weights = await self._load_if_wanted(model)
            state = ModelState.UNLOADED
        except Exception as error:
            self.record.note_failure(error)
            too_large = error.message if isinstance(error, ModelTooLarge) else ""
            self._holds.fail(partial(self.record.request_error, too_large))
            weights, state = None, ModelState.FAILED
        if weights is None and (self.reserved_bytes or state is ModelState.FAILED):
            await self.give_up(state)
        return weights

    async def _load_if_wanted(self, model: LeavingModel) -> LoadedWeights | None:
        """Make room and load; raises what loading raises, and ModelTooLarge."""
        if not self._is_wanted() or not await self._memory.make_room(self._needed_bytes, model, self._is_wanted):
            return None
        self.reserved_bytes = self._needed_bytes
        self.enter(ModelState.LOADING)
        began_s = trio.current_time()
        weights = await trio.to_thread.run_sync(self._plan.load, abandon_on_cancel=True)
        self._needed_bytes = weights.memory_bytes
        # the files do not say all: what the model really takes can need more room
        if not await self._memory.make_room(weights.memory_bytes, model, self._is_wanted):
            return None
        self.reserved_bytes = weights.memory_bytes
        self.record.note_load(trio.current_time() - began_s, weights.memory_bytes)
        return weights

    def _is_wanted(self) -> bool:
        return self._holds.waiting > 0

    async def give_up(self, state: ModelState, owned: list[object] | None = None) -> None:
        """Give the memory back to the machine, also that of `owned`; only then does it count as free."""
        await trio.to_thread.run_sync(release_memory, owned or [])
        self.reserved_bytes = 0
        self.enter(state)
