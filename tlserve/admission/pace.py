"""The rate at which requests end, and from it the time after which a retry makes sense.

Owns the measure: the time between the latest endings, without the time in which no request was inside, so that an idle night does
not make a server look slow. Pure: the clock is an argument, in seconds, and never goes back. Source: RFC 9110 section 10.2.3.
"""

from __future__ import annotations

import math
from collections import deque

REMEMBERED = 32
SHORTEST_S = 1
LONGEST_S = 60


class Pace:
    """Notes the beginnings and endings of requests, and estimates from the latest of them."""

    def __init__(self) -> None:
        self._inside = 0
        self._busy_s = 0.0
        self._since_s = 0.0
        self._endings = deque([0.0], maxlen=REMEMBERED + 1)

    def begin(self, now_s: float) -> None:
        """Note that a request has entered."""
        self._advance(now_s)
        self._inside += 1

    def end(self, now_s: float) -> None:
        """Note that a request has ended, in any way."""
        self._advance(now_s)
        self._inside -= 1
        self._endings.append(self._busy_s)

    def retry_after_s(self, waiting: int, now_s: float) -> int:
        """Return the whole seconds, from 1 to 60, until as many requests will have ended as are waiting now.

        Time in which no request ended counts, so that a stall makes the estimate longer. Before the first ending the time that
        has passed is the estimate for one request.
        """
        self._advance(now_s)
        measured_s = self._busy_s - self._endings[0]
        each_s = measured_s / max(1, len(self._endings) - 1)
        return min(LONGEST_S, max(SHORTEST_S, math.ceil(max(1, waiting) * each_s)))

    def _advance(self, now_s: float) -> None:
        if self._inside:
            self._busy_s += max(0.0, now_s - self._since_s)
        self._since_s = now_s
