"""Whether a function takes time in proportion to its text: measured in processor time, with care for a busy machine.

First every text is tried at a small size, where anything worse than linear already takes a hundred times as long as it should,
then the slowest one at growing sizes. What seems too slow is measured again: the shortest time counts.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import attrs

SMALL = (32, 2048)
LARGEST = 1 << 20
TRIES = 8
MOST_EXPONENT = 1.75
ENOUGH_S = 0.02
"""Processor time of one call from which on a growth can be measured; larger texts are not needed then."""

_LIMIT_S = 0.5

Work = Callable[[str], object]
Texts = Iterable[Callable[[int], str]]


class TooSlow(Exception):
    """A call was ended because it took more processor time than any linear one needs."""


@contextmanager
def _ended_after(limit_s: float) -> Iterator[None]:
    """End the block after `limit_s` of processor time: matching a regular expression looks for signals."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def cpu_s(work: Work, text: str, limit_s: float = _LIMIT_S) -> float:
    """Return the processor time of `work(text)`, infinite beyond `limit_s`."""
    began = time.thread_time()
    try:
        with _ended_after(limit_s):
            work(text)
    except TooSlow:
        return math.inf
    return time.thread_time() - began


@attrs.frozen
class Rate:
    """What a linear function may take at a small size: `free_s`, and `per_char_s` for each character."""

    free_s: float = 0.002
    per_char_s: float = 5e-7

    def allowed_s(self, size: int) -> float:
        return self.free_s + self.per_char_s * size


PATTERN = Rate()
WALK = Rate(free_s=0.01, per_char_s=2e-5)


def growth_fault(work: Work, texts: Texts, rate: Rate = PATTERN, *, largest: int = LARGEST) -> str | None:
    """Return in what way `work` is not linear on one of `texts` (each makes a text of a size), or None."""
    slowest, worst = -1.0, None
    for make in texts:
        for size in SMALL:
            text = make(size)
            taken_s = _shortest_s(work, text, rate.allowed_s(len(text)))
            if taken_s > rate.allowed_s(len(text)):
                return f"{taken_s:.3g} s for {len(text)} characters: {_shown(text)}"
        if taken_s > slowest:
            slowest, worst = taken_s, make
    return None if worst is None else _fault_at_growing_sizes(work, worst, largest)


def _fault_at_growing_sizes(work: Work, make: Callable[[int], str], largest: int) -> str | None:
    size = SMALL[-1]
    while 4 * size < largest and cpu_s(work, make(2 * size)) < ENOUGH_S / 4:
        size *= 2
    first, last = make(size), make(4 * size)
    for _ in range(TRIES):
        first_s, last_s, again_s = (cpu_s(work, text, 2.0) for text in (first, last, first))
        growth = last_s / max(min(first_s, again_s), 1e-6)  # a processor that changes its speed must not hide a growth
        exponent = math.log(max(growth, 1e-6)) / math.log(len(last) / len(first))
        if exponent < MOST_EXPONENT or last_s < ENOUGH_S / 10:
            return None
    return f"time grows with the power {exponent:.2f} of the length up to {len(last)} characters: {_shown(last)}"


def _shortest_s(work: Work, text: str, enough_s: float) -> float:
    """Return the shortest time of a few calls; the first one within `enough_s` will do."""
    shortest = math.inf
    for _ in range(TRIES):
        shortest = min(shortest, cpu_s(work, text))
        if shortest <= enough_s or shortest > 100 * enough_s:
            break
    return shortest


def _shown(text: str) -> str:
    return repr(text if len(text) < 60 else f"{text[:40]}...{text[-15:]}")


def exhausting(iterate: Callable[[str], Iterable[Any]]) -> Work:
    """Return a function that runs through all that `iterate` gives."""

    def run(text: str) -> None:
        for _ in iterate(text):
            pass

    return run
