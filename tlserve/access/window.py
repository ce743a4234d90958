"""How much was used in the last minute: an upper bound that is never exceeded, in a fixed amount of memory.

Owns one ring of 61 counts, one for each second. What was counted in second s is forgotten when second s + 61 begins, so that
any 60 seconds, wherever they start, lie within what is remembered; a bucket that refills steadily would let twice its limit
through in its first minute. Pure: the clock is an argument, in seconds, and never goes back.
"""

from __future__ import annotations

WINDOW_S = 60
_SLOTS = WINDOW_S + 1


class MinuteWindow:
    """Counts of the last minute; the limit is the asker's, so that it can change."""

    def __init__(self) -> None:
        self._counts = [0] * _SLOTS
        self._second = 0
        self._total = 0

    def used(self, now_s: float) -> int:
        """Return what was counted in the last minute."""
        self._forget(int(now_s))
        return self._total

    def add(self, count: int, now_s: float) -> None:
        """Count `count`, whatever the limit is."""
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
        """Return in how many seconds `count` more stay within `limit`: 0 for now. `count` must not be above `limit`."""
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
