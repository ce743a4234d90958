"""Runs as a picture: output tokens per second, time to first token and time per token against the load.

Owns the choice of measures and the titles. Does not draw.
"""

from __future__ import annotations

from collections.abc import Sequence

from tlserve.bench.comparison import MEASURES, LoadRun, loads_of, select, spread_of_runs
from tlserve.bench.load import Closed, Load
from tlserve.bench.plot import Panel, Picture, Point

_DRAWN = {
    "output_tokens_per_s": "output tokens/s",
    "first_token_p50_ms": "time to first token, p50, ms",
    "per_token_p50_ms": "time per token, p50, ms",
}


def picture_of(runs: Sequence[LoadRun], targets: Sequence[str]) -> Picture:
    """Return the picture of the medians of all runs of `targets`, with the range of the runs."""
    loads = loads_of(runs)
    closed = all(isinstance(load, Closed) for load in loads)
    return Picture(
        load_names=[_name(load) for load in loads],
        load_title="concurrent clients" if closed else "requests per second",
        target_names=targets,
        panels=[
            Panel(title, [[_point(runs, target, load, measure) for load in loads] for target in targets])
            for measure, title in _DRAWN.items()
        ],
    )


def _name(load: Load) -> str:
    return str(load.streams) if isinstance(load, Closed) else f"{load.rate:g}"


def _point(runs: Sequence[LoadRun], target: str, load: Load, measure: str) -> Point | None:
    spread = spread_of_runs(select(runs, target, load), MEASURES[measure])
    return None if spread is None else Point(spread.median, spread.low, spread.high)
