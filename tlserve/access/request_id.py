"""The id that names a request in every answer and log line.

Owns what a client's own id may look like. Refuses to know headers and randomness: both are handed in.
"""

from __future__ import annotations

from collections.abc import Callable

HEADER = "X-Request-Id"
MAX_CHARACTERS = 128


def choose_request_id(offered: str | None, fresh: Callable[[], str]) -> str:
    """Return `offered` when it is printable ASCII of 1 to 128 characters, else a fresh id."""
    return offered if offered is not None and is_acceptable(offered) else fresh()


def is_acceptable(offered: str) -> bool:
    """Say whether a client's id can be echoed: it goes into headers and log lines as it is."""
    return 1 <= len(offered) <= MAX_CHARACTERS and offered.isascii() and offered.isprintable()
