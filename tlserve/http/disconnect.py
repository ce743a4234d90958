"""Notice that the client has disconnected while its answer is being made.

Owns the one rule: from the end of a request's body to the end of its response a task reads, and the end of the input means that
the client has disconnected. Reading cannot tell a half-close from a close, so both count as a close. Bytes that arrive meanwhile
are pipelined requests: they are kept for their turn. A client that pipelines more than one request of the largest size is cut
off, because the task would have to stop reading, and then could no longer notice anything.
"""

from __future__ import annotations

from tlserve.config.tables.network import HttpSettings
from tlserve.http.wire import Wire


def pipelined_bytes_limit(settings: HttpSettings) -> int:
    """Return the bytes that can wait behind the request that is being answered: one more request of the largest size."""
    return settings.max_header_bytes + settings.max_body_bytes


async def wait_departed(wire: Wire, limit_bytes: int) -> None:
    """Return when the peer has ended its side, was reset, or has pipelined more than `limit_bytes`.

    Cancel it to stop watching: bytes that arrived are in `wire.received`.
    """
    while len(wire.received) <= limit_bytes and await wire.receive():
        pass
