"""Who leaves for another model: as few as possible, idle ones first, and of those the one that was used longest ago."""

import itertools

import pytest

from tlserve.programs.residency.room import Occupant, plan_room


def occupant(name: str, size: int = 10, held: int = 0, used: float = 0.0, *, unloading: bool = False) -> Occupant:
    return Occupant(name=name, memory_bytes=size, held=held, last_used_s=used, is_unloading=unloading)


def test_no_model_leaves_if_there_is_room() -> None:
    plan = plan_room(10, 10, [occupant("a")])
    assert (plan.leaving, plan.has_room) == (frozenset(), True)


@pytest.mark.spec("RES-2")
@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_idle_models_leave_by_their_last_use_and_busy_ones_last(order) -> None:
    models = [occupant("old", used=1), occupant("new", used=2), occupant("busy", held=1, used=0)]
    models.append(occupant("going", used=9, unloading=True))
    given = [models[i] for i in order]
    found = [plan_room(needed, 0, given).leaving for needed in (10, 20, 30, 40)]
    assert found == [{"going"}, {"going", "old"}, {"going", "old", "new"}, {"going", "old", "new", "busy"}]


def test_no_more_models_leave_than_are_needed() -> None:
    models = [occupant("a", 5, used=1), occupant("b", 50, used=2), occupant("c", 5, used=3)]
    assert plan_room(40, 0, models).leaving == {"a", "b"}
    assert plan_room(8, 4, models).leaving == {"a"}


def test_all_leave_where_even_that_is_not_enough_yet() -> None:
    plan = plan_room(100, 0, [occupant("a"), occupant("b")])
    assert plan.leaving == {"a", "b"}
    assert not plan.has_room
