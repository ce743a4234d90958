"""Notice that the client has gone while its answer is being made.

Owns the one rule: from the end of a request's body to the end of its response somebody reads, and the end of the input
means that the client has gone. A half-close cannot be told from a close by reading, so it counts as one. What comes in
meanwhile are pipelined requests: they are kept for their turn, and a client that sends more of them than one whole request
may hold is cut, because a reader that stopped reading could not notice anything any more.
"""

from __future__ import annotations

from tlserve.config.settings import HttpSettings
from tlserve.http.wire import Wire


def pipelined_bytes_limit(settings: HttpSettings) -> int:
    """Return how much may wait behind the request that is being answered: one more request of the largest size."""
    return settings.max_header_bytes + settings.max_body_bytes


async def wait_departed(wire: Wire, limit_bytes: int) -> None:
    """Return when the peer has ended its side, was reset, or has pipelined more than `limit_bytes`.

    Cancel it to stop watching: bytes that arrived are in `wire.received`.
    """
    while len(wire.received) <= limit_bytes and await wire.receive():
        pass
