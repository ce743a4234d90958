"""The id that names a request in every answer and log line.

Owns the form of an id that a client can send. Knows nothing of headers and randomness: both are arguments.
"""

from __future__ import annotations

from collections.abc import Callable

HEADER = "X-Request-Id"
MAX_CHARACTERS = 128


def choose_request_id(offered: str | None, fresh: Callable[[], str]) -> str:
    """Return `offered` if it is printable ASCII of 1 to 128 characters, else a new id."""
    return offered if offered is not None and is_acceptable(offered) else fresh()


def is_acceptable(offered: str) -> bool:
    """Say whether the id of a client can be used unchanged in headers and log lines."""
    return 1 <= len(offered) <= MAX_CHARACTERS and offered.isascii() and offered.isprintable()
