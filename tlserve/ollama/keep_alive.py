"""`keep_alive` of Ollama's API: how long a model stays in memory after a request.

Owns its spellings: seconds as a number, or a duration as Go writes it, such as "1h30m" or "-1m". A negative one has no end. Does
not know models.

Source: Ollama's page of its API; `ParseDuration` of Go's package time.
"""

from __future__ import annotations

import math
import re

from tlserve.errors import ClientError

_UNITS = {"ns": 1e-9, "us": 1e-6, "\u00b5s": 1e-6, "\u03bcs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER = r"(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})"
_DURATION_PART = re.compile(rf"({_NUMBER})(ns|us|\u00b5s|\u03bcs|ms|s|m|h)")
_DURATION = re.compile(rf"[-+]?(?:0|(?:{_NUMBER}(?:ns|us|\u00b5s|\u03bcs|ms|s|m|h)){{1,16}})")

KEEP_ALIVE_SCHEMA = {
    "anyOf": [
        {"type": "number", "not": {"const": 0}},
        {"type": "string", "pattern": "^-?[1-9][0-9]{0,8}(ns|us|ms|s|m|h)$"},
    ]
}
"""What every model honours; 0 is refused for one that never leaves."""


def read_keep_alive(value: str | float | None) -> float | None:
    """Return the time in seconds, infinity for a negative one, None without a value; raises ClientError."""
    if value is None:
        return None
    seconds = _seconds(value) if isinstance(value, str) else float(value)
    return math.inf if seconds < 0 else seconds


def _seconds(text: str) -> float:
    if not _DURATION.fullmatch(text):
        raise ClientError(
            f'keep_alive is {text[:40]!r}; send seconds, or a duration such as "5m", "1h30m" or "-1m"',
            param="keep_alive",
        )
    total = sum(float(number) * _UNITS[unit] for number, unit in _DURATION_PART.findall(text))
    return -total if text.startswith("-") else total
