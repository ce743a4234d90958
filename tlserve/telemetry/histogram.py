"""Counts of values by size, cheap enough for every step of the engine.

Owns the counting: one list of whole numbers, one search per value, no locks. The observer is the only writer; a snapshot is an
immutable value.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from tlserve.generation import Distribution


class Histogram:
    """Counts of values up to each of `bounds` (ascending and inclusive, as in Prometheus), and their sum."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count `value`."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def snapshot(self) -> Distribution:
        """Return the counts so far."""
        return Distribution(self._bounds, tuple(self._counts), self._total)
