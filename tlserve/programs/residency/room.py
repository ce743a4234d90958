"""Which models leave when another one needs memory: a pure decision.

Owns the order: those that are being unloaded anyway, then idle models, then busy ones, and of equals the one that was used
longest ago. Knows nothing of loading.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs


@attrs.frozen(kw_only=True)
class Occupant:
    """A model that is in memory and can leave; `held`: requests that keep it there; `is_unloading`: it leaves already."""

    name: str
    memory_bytes: int
    held: int
    last_used_s: float
    is_unloading: bool = False


@attrs.frozen
class RoomPlan:
    """The names of the models that leave, and whether there is room before they have done so."""

    leaving: frozenset[str]
    has_room: bool


def plan_room(needed_bytes: int, free_bytes: int, occupants: Sequence[Occupant]) -> RoomPlan:
    """Return who leaves for `needed_bytes`, no more models than necessary; all of them if even that is not enough yet."""
    if needed_bytes <= free_bytes:
        return RoomPlan(frozenset(), has_room=True)
    leaving: list[str] = []
    for occupant in sorted(occupants, key=_order):
        if needed_bytes <= free_bytes:
            break
        leaving.append(occupant.name)
        free_bytes += occupant.memory_bytes
    return RoomPlan(frozenset(leaving), has_room=False)


def _order(one: Occupant) -> tuple[bool, bool, float]:
    return not one.is_unloading, one.held > 0, one.last_used_s
