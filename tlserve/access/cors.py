"""Cross-origin requests of web pages: the origins that can read an answer, and the answer to a preflight.

Owns the headers. Knows nothing of routes: the methods of a path are an argument. Requests cannot have credentials: the page sends
its key in a header that it sets itself. Source: the Fetch standard, section 3.2 (CORS protocol).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import attrs

from tlserve.http.messages import Headers

ANY = "*"
PREFLIGHT_AGE_S = 600
EXPOSED = (
    "X-Request-Id",
    "Retry-After",
    "X-TL-Ignored",
    "X-TL-Seed",
    *(f"X-RateLimit-{what}-{kind}" for kind in ("Requests", "Tokens") for what in ("Limit", "Remaining", "Reset")),
)

_FIELD_NAMES = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z, ]{1,1000}")

Fields = tuple[tuple[str, str], ...]


@attrs.frozen
class Cors:
    """The origins that can read answers: none by default, `*` for all of them."""

    allow_origins: tuple[str, ...] = ()

    def headers(self, request: Headers) -> Fields:
        """Return the headers of every answer; also without an origin, a cache must know that the answer depends on it."""
        if not self.allow_origins:
            return ()
        vary = () if ANY in self.allow_origins else (("Vary", "Origin"),)
        allowed = self._allowed(request)
        if allowed is None:
            return vary
        exposed = ", ".join(EXPOSED)
        return (("Access-Control-Allow-Origin", allowed), ("Access-Control-Expose-Headers", exposed), *vary)

    def preflight(self, method: str, request: Headers, methods: Iterable[str]) -> Fields | None:
        """Return the additional headers of the answer to a preflight of an allowed origin; None if this is not a preflight.

        `methods` are those of the path, none for an unknown path.
        """
        asked = request.get("access-control-request-method")
        known = tuple(methods)
        if method != "OPTIONS" or asked is None or not known or self._allowed(request) is None:
            return None
        fields = request.get("access-control-request-headers", "")
        return (
            ("Access-Control-Allow-Methods", ", ".join(known)),
            *((("Access-Control-Allow-Headers", fields),) if fields and _FIELD_NAMES.fullmatch(fields) else ()),
            ("Access-Control-Max-Age", str(PREFLIGHT_AGE_S)),
        )

    def _allowed(self, request: Headers) -> str | None:
        origins = request.get_all("origin")
        if len(origins) != 1:
            return None
        if ANY in self.allow_origins:
            return ANY
        return origins[0] if origins[0] in self.allow_origins else None
