"""A limit per minute: how much of it was used, and how a client sees it, in the headers of every answer and in the 429.

The count is an upper bound that is never exceeded, in a fixed amount of memory: one ring of 61 counts, one for each second. The
count of second s is forgotten when second s + 61 begins, so that any 60 seconds, wherever they start, are within what is
remembered; a bucket that refills steadily would let twice its limit through in its first minute.

The names and forms of `X-RateLimit-*` are those of the public API: the limit, what is left of it, and when all of it is free
again. Pure: the clock is an argument, in seconds, and never goes back. Sources: the public API's guide to rate limits; RFC 6585
section 4; RFC 9110 section 10.2.3.
"""

from __future__ import annotations

import math

from tlserve.http.messages import HttpFault

Fields = tuple[tuple[str, str], ...]

WINDOW_S = 60
_SLOTS = WINDOW_S + 1


class MinuteWindow:
    """Counts of the last minute; the caller holds the limit, so that it can change."""

    def __init__(self) -> None:
        self._counts = [0] * _SLOTS
        self._second = 0
        self._total = 0

    def used(self, now_s: float) -> int:
        """Return the count of the last minute."""
        self._forget(int(now_s))
        return self._total

    def add(self, count: int, now_s: float) -> None:
        """Count `count` more, whatever the limit is."""
        self._forget(int(now_s))
        self._counts[self._second % _SLOTS] += count
        self._total += count

    def take_back(self, count: int, then_s: float, now_s: float) -> None:
        """Undo `count` of what was counted at `then_s`, unless it is forgotten already."""
        self._forget(int(now_s))
        if int(then_s) > self._second - _SLOTS:
            slot = int(then_s) % _SLOTS
            undone = min(count, self._counts[slot])
            self._counts[slot] -= undone
            self._total -= undone

    def wait_s(self, count: int, limit: int, now_s: float) -> float:
        """Return the seconds until `count` more stay within `limit`, 0 for now. `count` must not be above `limit`."""
        excess = self.used(now_s) + count - limit
        second = self._second - _SLOTS
        while excess > 0 and second < self._second:
            second += 1
            excess -= self._counts[second % _SLOTS]
        return max(0.0, second + _SLOTS - now_s)

    def _forget(self, second: int) -> None:
        """Move to `second` and drop what is older than a minute before it."""
        if second - self._second >= _SLOTS:
            self._counts = [0] * _SLOTS
            self._total = 0
        else:
            for old in range(self._second + 1, second + 1):
                self._total -= self._counts[old % _SLOTS]
                self._counts[old % _SLOTS] = 0
        self._second = max(self._second, second)


# --- what a client sees --------------------------------------------------------------------------------------------


def limit_headers(kind: str, limit: int, window: MinuteWindow, now_s: float) -> Fields:
    """Return the three headers of a limit; `kind` is "Requests" or "Tokens". A limit of 0 has none."""
    if not limit:
        return ()
    used = window.used(now_s)
    reset_s = window.wait_s(limit, limit, now_s)
    return (
        (f"X-RateLimit-Limit-{kind}", str(limit)),
        (f"X-RateLimit-Remaining-{kind}", str(max(0, limit - used))),
        (f"X-RateLimit-Reset-{kind}", spell_duration(reset_s)),
    )


def spell_duration(duration_s: float) -> str:
    """Return a duration as the public API writes it: "0s", "7s", "1m1s", rounded up to the second."""
    minutes, seconds = divmod(math.ceil(duration_s), 60)
    return f"{minutes}m{seconds}s" if minutes else f"{seconds}s"


def too_many(message: str, wait_s: float, headers: Fields = ()) -> HttpFault:
    """Return the 429 that says when to try again."""
    return HttpFault(429, message, None, (("Retry-After", str(max(1, math.ceil(wait_s)))), *headers))
