"""The figures of a model over all engines that it has had: a model that was unloaded does not forget what it counted.

Owns the sum: counters and histograms add up, gauges are those of the engine that runs now.
"""

from __future__ import annotations

from typing import Any

import attrs

from tlserve.generation import Distribution, EngineStatistics


def continued(past: EngineStatistics, now: EngineStatistics) -> EngineStatistics:
    """Return `now` with the counters and histograms of `past` added."""
    added: dict[str, Any] = {
        field.name: _sum(getattr(past, field.name), getattr(now, field.name))
        for field in attrs.fields(EngineStatistics)
        if field.name.endswith("_total") or field.type in ("Distribution", Distribution)
    }
    return attrs.evolve(now, **added)


def without_gauges(figures: EngineStatistics) -> EngineStatistics:
    """Return the counters and histograms of an engine that has ended, with gauges of 0."""
    return continued(figures, EngineStatistics())


def _sum(past: float | Distribution, now: float | Distribution) -> float | Distribution:
    if isinstance(past, Distribution) and isinstance(now, Distribution):
        return _joined(past, now)
    assert not isinstance(past, Distribution)
    assert not isinstance(now, Distribution)
    return past + now


def _joined(past: Distribution, now: Distribution) -> Distribution:
    if not past.bounds or not now.bounds:  # one of them has not counted yet
        return past if past.bounds else now
    counts = tuple(a + b for a, b in zip(past.counts, now.counts, strict=True))
    return Distribution(now.bounds, counts, past.total + now.total)
