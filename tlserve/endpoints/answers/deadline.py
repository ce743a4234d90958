"""When an answer must be there: what the request asks for in its body or its header, and what the operator allows.

Owns the choice of the earliest, and the error of those who are late. The time counts from the arrival of the request's head, so
that it covers the reading of the body, the queue and the work alike.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import trio

from tlserve.errors import ClientError, DeadlineExceeded
from tlserve.http.messages import Headers

HEADER = "X-TL-Deadline-Ms"
_MILLISECONDS = re.compile(r"[1-9][0-9]{0,11}")


@attrs.frozen
class Deadline:
    """A moment of trio's clock, and the time that it gave the request, in seconds."""

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
        """Return the error of who is late."""
        return DeadlineExceeded(
            f"the request's deadline of {self.given_s * 1000:.0f} ms passed before its answer was complete; "
            "give it more time, or ask for less"
        )


NO_DEADLINE = Deadline()


def read_deadline_s(headers: Headers) -> float:
    """Return the seconds that `X-TL-Deadline-Ms` gives, infinity without one; raises ClientError for what is no number."""
    text = headers.get(HEADER)
    if text is None:
        return math.inf
    if not _MILLISECONDS.fullmatch(text):
        raise ClientError(f"{HEADER} is {text[:20]!a}; send a whole number of milliseconds, at least 1", param=HEADER)
    return int(text) / 1000


def plan_deadline(started_s: float, header_s: float, timeout_s: float | None, most_ms: int) -> Deadline:
    """Return the earliest of what the header, the body's `timeout` and the operator give; `most_ms` 0 is no limit."""
    given = (header_s, timeout_s, most_ms / 1000 if most_ms else None)
    given_s = min(seconds for seconds in given if seconds is not None)
    return Deadline(started_s + given_s, given_s)
