"""The cost of each type of activations: the time of a step, and of a prefill, over that of the first type.

The engines take turns, step run by step run, so that a slow minute affects all of them. Does not print and loads no models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from tests.benchmarks.engine.steps import BareEngine, EnginePlan
from tlserve.bench.comparison import Spread, spread_of


@attrs.frozen(kw_only=True)
class ActivationCost:
    """One type in steps of `rows` sequences, 0: in a prefill; `over_first` is the ratio to the first type in the same turn."""

    activations: str
    rows: int
    step_ms: Spread
    over_first: Spread


def measure_activations(
    engines: Mapping[str, BareEngine], plan: EnginePlan, done: Callable[[], None]
) -> list[ActivationCost]:
    """Time `plan.repeats` turns of all engines, by their median steps, after one turn that does not count."""
    found: dict[tuple[int, str], list[float]] = {(rows, name): [] for rows in (0, *plan.rows) for name in engines}
    for turn in range(plan.repeats + 1):
        for (rows, name), each in found.items():
            seconds = _timed(engines[name], rows, plan)
            if turn:
                each.append(seconds * 1000)
                done()
    names = list(engines)
    return [_cost(name, rows, each, found[rows, names[0]]) for (rows, name), each in found.items()]


def _timed(bare: BareEngine, rows: int, plan: EnginePlan) -> float:
    """Return the seconds of a usual step, or of the whole prefill."""
    if rows == 0:
        return bare.time_prefill(plan.prefill_tokens).seconds
    return bare.time_steps(rows, plan.prompt_tokens, plan.steps).usual_s


def _cost(name: str, rows: int, step_ms: Sequence[float], first_ms: Sequence[float]) -> ActivationCost:
    own, first = spread_of(step_ms), spread_of(first_ms)
    each = [mine / base for mine, base in zip(step_ms, first_ms, strict=True)]
    ratio = Spread(median=own.median / first.median, low=min(each), high=max(each))
    return ActivationCost(activations=name, rows=rows, step_ms=own, over_first=ratio)
