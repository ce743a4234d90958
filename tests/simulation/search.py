"""Run seeds, and make a failing run small: without each client, fault and signal that it does not need.

A run that fails is named by a command: its seed and the numbers of the clients, faults and stops that are left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import attrs

from tests.simulation.checks import problems as problems_of
from tests.simulation.plan import Plan, make_plan
from tests.simulation.world import simulate

Judge = Callable[[Plan], list[str]]


@attrs.frozen
class Selection:
    """A part of the plan of a seed, by the numbers of its parts."""

    seed: int
    clients: tuple[int, ...]
    faults: tuple[int, ...]
    stops: tuple[int, ...]

    @classmethod
    def whole(cls, seed: int) -> Selection:
        plan = make_plan(seed)
        return cls(seed, tuple(range(len(plan.clients))), tuple(range(len(plan.faults))), tuple(range(len(plan.stops))))

    def plan(self) -> Plan:
        whole = make_plan(self.seed)
        return attrs.evolve(
            whole,
            clients=tuple(whole.clients[number] for number in self.clients),
            faults=tuple(whole.faults[number] for number in self.faults),
            stops=tuple(whole.stops[number] for number in self.stops),
        )

    def smaller(self) -> Iterator[Selection]:
        """Yield this selection without one of its parts, faults and stops first."""
        for number in self.faults:
            yield attrs.evolve(self, faults=without(self.faults, number))
        for number in self.stops:
            yield attrs.evolve(self, stops=without(self.stops, number))
        for number in self.clients:
            yield attrs.evolve(self, clients=without(self.clients, number))

    def command(self) -> str:
        """Return the command that plays it again."""
        names = ("clients", "faults", "stops")
        chosen = (f"--{name} {','.join(map(str, getattr(self, name))) or 'none'}" for name in names)
        return " ".join([f"python -m tests.simulation --seed {self.seed}", *chosen])


def without(numbers: tuple[int, ...], number: int) -> tuple[int, ...]:
    """Return `numbers` without one of them."""
    return tuple(other for other in numbers if other != number)


def judged(plan: Plan) -> list[str]:
    """Play `plan` and return what does not hold; an exception that leaves the run is a problem as well."""
    try:
        return problems_of(simulate(plan))
    except Exception as error:
        return [f"the run raised {error!r}"]


def shrink(selection: Selection, judge: Judge = judged) -> Selection:
    """Return a selection that still fails and of which no single part can be left out."""
    while True:
        smaller = next((other for other in selection.smaller() if other.clients and judge(other.plan())), None)
        if smaller is None:
            return selection
        selection = smaller


@attrs.frozen
class Finding:
    """A seed that fails, made small, and what does not hold."""

    selection: Selection
    problems: list[str]

    def __str__(self) -> str:
        return "\n".join([self.selection.command(), *(f"    {problem}" for problem in self.problems)])


def find(seeds: Iterable[int], *, limit_s: float = float("inf"), small: bool = True) -> tuple[int, Finding | None]:
    """Play `seeds` for at most `limit_s`; return how many were played, and the first one that fails, made small or whole."""
    began, played = time.monotonic(), 0
    for seed in seeds:
        if time.monotonic() - began > limit_s:
            break
        played += 1
        selection = Selection.whole(seed)
        problems = judged(selection.plan())
        if problems and small:
            selection = shrink(selection)
            problems = judged(selection.plan())
        if problems:
            return played, Finding(selection, problems)
    return played, None
