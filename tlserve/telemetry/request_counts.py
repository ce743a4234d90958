"""The number of requests that have ended, by route, method, status and the finish of a generated answer.

Owns the counts and the values of their labels: an unknown route or method is "other", so that no client can make a new series.
Does not know what a route does. One task counts: not thread-safe.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

OTHER = "other"
_ROUTE_NAME = re.compile(r"\{[A-Za-z_]++(\+?+)\}")
_NAMED = {"": "[^/]++", "+": "(?s:.++)"}
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestCounts:
    """Counts of requests that ended. `routes` are paths; `{name}` matches one segment, a last `{name+}` one or more."""

    def __init__(self, routes: Iterable[str]) -> None:
        self._routes = {route: _pattern(route) for route in routes}
        self._counts: Counter[tuple[str, ...]] = Counter()

    def count(self, method: str, path: str, status: int, finish: str = "") -> None:
        """Count one request; `path` is with or without its query, `finish` is one of the few values of an answer."""
        label = method if method in METHODS else OTHER
        self._counts[self.route_of(path), label, str(status), finish] += 1

    def route_of(self, path: str) -> str:
        """Return the route that `path` belongs to, or "other"."""
        bare = path.partition("?")[0]
        matching = (route for route, pattern in self._routes.items() if pattern.fullmatch(bare))
        return next(matching, OTHER)

    def totals(self) -> Mapping[tuple[str, ...], int]:
        """Return (route, method, status, finish) -> count."""
        return self._counts


def _pattern(route: str) -> re.Pattern[str]:
    pieces = _ROUTE_NAME.split(route)
    patterns = [re.escape(piece) if place % 2 == 0 else _NAMED[piece] for place, piece in enumerate(pieces)]
    return re.compile("".join(patterns))
