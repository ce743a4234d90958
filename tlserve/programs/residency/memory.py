"""The memory that the models of a server share: one load at a time, and room for it.

Owns the budget and the order of the loads. A model that is to leave lets no new request in; those that it has finish first. When
the model that needs the room is no longer wanted, those that were to leave for it stay. Does not know what a model is:
`LeavingModel` says what it needs of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio
import trio.lowlevel

from tlserve.errors import ModelTooLarge
from tlserve.programs.residency.room import Occupant, plan_room


class LeavingModel(Protocol):
    """What the memory must know of a model that can leave."""

    @property
    def name(self) -> str:
        """Return the id of the model."""

    @property
    def memory_bytes(self) -> int:
        """Return what it takes now, or has reserved."""

    def occupant(self) -> Occupant | None:
        """Return it as an occupant if it is in memory and can be told to leave, else None."""

    def set_leaving(self, leaving: bool) -> None:
        """Tell it to leave as soon as no request holds it, or take that back."""


class ModelMemory:
    """`budget_bytes` for the models that can leave and for `fixed_bytes` of models that never do."""

    def __init__(self, budget_bytes: int, fixed_bytes: int = 0) -> None:
        self.budget_bytes = budget_bytes
        self._fixed_bytes = fixed_bytes
        self._models: list[LeavingModel] = []
        self._turn = trio.Lock()
        self._changes = trio.lowlevel.ParkingLot()

    @property
    def turn(self) -> trio.Lock:
        """Return the lock that a load holds from looking for room to its end; waiting models get it in their order."""
        return self._turn

    def add(self, model: LeavingModel) -> None:
        """Count `model` from now on."""
        self._models.append(model)

    def changed(self) -> None:
        """Wake those that wait for a change."""
        self._changes.unpark_all()

    async def wait_change(self) -> None:
        """Wait for the next change."""
        await self._changes.park()

    async def make_room(self, needed_bytes: int, wanting: LeavingModel, is_wanted: Callable[[], bool]) -> bool:
        """Wait until `needed_bytes` fit beside the others; False if that is no longer wanted before. Raises ModelTooLarge.

        The caller reserves them before anything else can run.
        """
        self._check(needed_bytes, wanting.name)
        others = [model for model in self._models if model is not wanting]
        try:
            while True:
                free_bytes = self.budget_bytes - self._fixed_bytes - sum(other.memory_bytes for other in others)
                occupants = [found for other in others if (found := other.occupant()) is not None]
                plan = plan_room(needed_bytes, free_bytes, occupants)
                if plan.has_room or not is_wanted():
                    return plan.has_room
                for other in others:
                    other.set_leaving(other.name in plan.leaving)
                await self.wait_change()
        finally:
            for other in others:
                other.set_leaving(False)

    def _check(self, needed_bytes: int, name: str) -> None:
        most_bytes = self.budget_bytes - self._fixed_bytes
        if needed_bytes > most_bytes:
            raise ModelTooLarge(
                f"the model {name!r} needs {needed_bytes} bytes, and the memory for models that can leave has "
                f"{max(0, most_bytes)}: raise loading.memory_bytes"
            )
