"""When an answer must be complete: what the request asks for in its body or its header, and what the operator allows.

Owns the choice of the earliest, and the error of a late answer. The time counts from the arrival of the request's head, so that
it covers reading the body, the queue and the work.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import trio

from tlserve.errors import DeadlineExceeded


@attrs.frozen
class Deadline:
    """A moment of trio's clock, and the time that it leaves the request, in seconds."""

    at: float = math.inf
    given_s: float = math.inf

    def check(self) -> None:
        """Raise DeadlineExceeded if it has passed."""
        if trio.current_time() >= self.at:
            raise self.exceeded()

    @contextmanager
    def obeyed(self) -> Iterator[None]:
        """Cancel the block when the deadline passes; raises DeadlineExceeded then, or at once if it has passed."""
        self.check()
        try:
            with trio.fail_at(self.at):
                yield
        except trio.TooSlowError:
            raise self.exceeded() from None

    def exceeded(self) -> DeadlineExceeded:
        """Return the error of a late answer."""
        return DeadlineExceeded(
            f"the request's deadline of {self.given_s * 1000:.0f} ms passed before its answer was complete; "
            "allow more time, or ask for fewer tokens"
        )


NO_DEADLINE = Deadline()


def plan_deadline(started_s: float, header_s: float, timeout_s: float | None, most_ms: int) -> Deadline:
    """Return the earliest of what the header, the body's `timeout` and the operator give; `most_ms` 0: no limit."""
    given = (header_s, timeout_s, most_ms / 1000 if most_ms else None)
    given_s = min(seconds for seconds in given if seconds is not None)
    return Deadline(started_s + given_s, given_s)
