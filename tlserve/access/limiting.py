"""How a limit is told to a client: the headers of every answer, and the 429.

Owns the names and forms of `X-RateLimit-*`, which are those of the public API: the limit, what is left of it, and when all
of it is free again. Pure. Sources: the public API's guide to rate limits; RFC 6585 section 4; RFC 9110 section 10.2.3.
"""

from __future__ import annotations

import math

from tlserve.access.window import MinuteWindow
from tlserve.http.messages import HttpFault

Fields = tuple[tuple[str, str], ...]


def limit_headers(kind: str, limit: int, window: MinuteWindow, now_s: float) -> Fields:
    """Return the three headers of one limit; `kind` is "Requests" or "Tokens". None for a limit of 0, which is none."""
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
