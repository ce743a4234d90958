"""The summary of runs, and the comparison of two servers.

Owns medians, spreads and ratios. Does not know how runs are made. A ratio is of medians; its range is that of the ratios of
neighbouring runs, A1/B1, A2/B2, ..., which shows how much the machine itself varies.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import attrs

from tlserve.bench.figures import Figures
from tlserve.bench.load import Load

MEASURES: dict[str, Callable[[Figures], float | None]] = {
    "output_tokens_per_s": lambda run: run.output_tokens_per_s,
    "first_token_p50_ms": lambda run: run.first_token_ms.p50 if run.first_token_ms else None,
    "per_token_p50_ms": lambda run: run.per_token_ms.p50 if run.per_token_ms else None,
    "whole_p50_ms": lambda run: run.whole_ms.p50 if run.whole_ms else None,
}
"""The measures that are compared, by the names in reports."""


@attrs.frozen(kw_only=True)
class LoadRun:
    """One run: its target, its load, its number from 0, and its figures."""

    target: str
    load: Load
    repeat: int
    figures: Figures


@attrs.frozen(kw_only=True)
class Spread:
    """The median, the lowest and the highest of some values."""

    median: float
    low: float
    high: float


@attrs.frozen(kw_only=True)
class Ratio:
    """One measure of the first target over that of the second under one load."""

    load: Load
    measure: str
    spread: Spread


def spread_of(values: Sequence[float]) -> Spread:
    """Return the median, the lowest and the highest of at least one value."""
    return Spread(median=statistics.median(values), low=min(values), high=max(values))


def spread_of_runs(runs: Sequence[LoadRun], measure: Callable[[Figures], float | None]) -> Spread | None:
    """Return the spread of a measure over runs; None if no run has it."""
    values = [value for run in runs if (value := measure(run.figures)) is not None]
    return spread_of(values) if values else None


def loads_of(runs: Sequence[LoadRun]) -> list[Load]:
    """Return the loads in the order in which they were run."""
    return list(dict.fromkeys(run.load for run in runs))


def select(runs: Sequence[LoadRun], target: str, load: Load) -> list[LoadRun]:
    """Return the runs of one target under one load, in the order of their repeats."""
    return [run for run in runs if run.target == target and run.load == load]


def ratios(runs: Sequence[LoadRun], first: str, second: str) -> list[Ratio]:
    """Return every measure of `first` over that of `second`; a measure that is missing in a run is left out."""
    return [
        Ratio(load=load, measure=name, spread=spread)
        for load in loads_of(runs)
        for name, measure in MEASURES.items()
        if (spread := _ratio(select(runs, first, load), select(runs, second, load), measure)) is not None
    ]


def _ratio(
    ours: Sequence[LoadRun], theirs: Sequence[LoadRun], measure: Callable[[Figures], float | None]
) -> Spread | None:
    pairs = [(measure(a.figures), measure(b.figures)) for a, b in zip(ours, theirs, strict=True)]
    whole = [(a, b) for a, b in pairs if a is not None and b]
    return ratio_of(whole) if whole else None


def ratio_of(pairs: Sequence[tuple[float, float]]) -> Spread:
    """Return the ratio of the medians of both sides of at least one pair, with the lowest and highest ratio of a pair."""
    median = statistics.median(a for a, _ in pairs) / statistics.median(b for _, b in pairs)
    each = [a / b for a, b in pairs]
    return Spread(median=median, low=min(each), high=max(each))
