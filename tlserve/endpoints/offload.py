"""Work that grows with the input, kept off the event loop when the input is large.

Owns the threshold and the limiter: rendering and tokenising megabytes must not stall the streams of others, nor take every
worker thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import attrs
import trio

Result = TypeVar("Result")

INLINE_BYTES = 16_384
"""Up to this input the work costs less than the hop to a thread and back would add in latency."""


def _limiter() -> trio.CapacityLimiter:
    return trio.CapacityLimiter(2)


@attrs.frozen
class Offload:
    """Runs functions here or in a worker thread, by the size of what they work on."""

    limiter: trio.CapacityLimiter = attrs.field(factory=_limiter)

    async def run(self, size_bytes: int, work: Callable[[], Result]) -> Result:
        """Return what `work` returns. A caller that is cancelled does not wait for the thread."""
        if size_bytes <= INLINE_BYTES:
            return work()
        return await trio.to_thread.run_sync(work, limiter=self.limiter, abandon_on_cancel=True)
