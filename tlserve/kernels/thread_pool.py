"""A small resident pool: runs the units of one phase in parallel and returns when all are done.

Does not know what a unit computes. The result of a unit must not depend on the thread that runs it; then the number of threads
cannot change a bit. numpy releases the interpreter lock inside matrix products and long element-wise loops, so two units do run
at the same time.

Measured with two cores: 10 us to pass a unit to a thread and back, and 100 to 2000 us for a unit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from tlserve.config.machine import usable_cores

Unit = Callable[[], None]


class ThreadPool:
    """`threads` threads, the caller's own among them; 0 means one per core that can be used.

    The helpers start with the first phase and end when the pool is dropped.
    """

    def __init__(self, threads: int = 0) -> None:
        self.threads = threads or usable_cores()
        self._helpers = ThreadPoolExecutor(self.threads - 1, "tlserve-kernels") if self.threads > 1 else None

    def run(self, units: Sequence[Unit]) -> None:
        """Run every unit once and return when all have ended; raises the first error of a unit."""
        if self._helpers is None or len(units) < 2:
            return _run_all(units)
        shares = [units[i :: self.threads] for i in range(min(self.threads, len(units)))]
        handed_over = [self._helpers.submit(_run_all, share) for share in shares[1:]]
        try:
            _run_all(shares[0])
        finally:  # units write into arrays of the caller: none may still run when this returns
            errors = [future.exception() for future in handed_over]
        for error in errors:
            if error is not None:
                raise error
        return None

    def run_row_chunks(self, work: Callable[[int, int], None], rows: int, chunk_rows: int) -> None:
        """Call `work(start, end)` over chunks of `chunk_rows` that cover `rows` rows."""
        starts = range(0, rows, chunk_rows)
        self.run([_bind_range(work, start, min(start + chunk_rows, rows)) for start in starts])


class HelperThread:
    """One thread that runs units in the order in which they are handed over, while the caller does something else."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, name)
        self._started: list[Future[None]] = []

    def start(self, unit: Unit) -> None:
        """Hand over a unit."""
        self._started.append(self._executor.submit(unit))

    def wait(self) -> None:
        """Return when all units have ended; raises the first error of one."""
        for future in self._started:
            future.result()

    def close(self) -> None:
        """End the thread after the unit that it runs; those after it are dropped."""
        self._executor.shutdown(cancel_futures=True)


def _run_all(units: Sequence[Unit]) -> None:
    """Run `units` one after the other; an overflow is part of a row's answer, not a warning (numpy keeps this per thread)."""
    with np.errstate(all="ignore"):
        for unit in units:
            unit()


def _bind_range(work: Callable[[int, int], None], start: int, end: int) -> Unit:
    """Return a unit that calls `work(start, end)`."""
    return lambda: work(start, end)
