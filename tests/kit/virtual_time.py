"""Runs of trio at virtual times whose order of tasks is drawn from a seed: the same seed, the same run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio
import trio.testing

Returned = TypeVar("Returned")


def run_seeded(main: Callable[..., Awaitable[Returned]], *args: Any, seed: int) -> Returned:
    """Run `main(*args)` under a clock that jumps; the order in which ready tasks run depends on `seed` alone.

    trio draws that order from its own generator; pytest-trio uses the same switch for hypothesis.
    """
    scheduler: Any = trio._core._run
    was = scheduler._ALLOW_DETERMINISTIC_SCHEDULING, scheduler._r.getstate()
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    scheduler._r.seed(seed)
    try:
        return trio.run(main, *args, clock=trio.testing.MockClock(autojump_threshold=0))
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = was[0]
        scheduler._r.setstate(was[1])
