"""Cross-origin requests of web pages: which origins get to read an answer, and the answer to a preflight.

Owns the headers. Refuses to know routes: the methods of a path are handed in. No credentials are allowed with a request: a key
travels in a header that the page sets itself. Source: the Fetch standard, section 3.2 (CORS protocol).
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
    """The origins that may read answers; none is the default, `*` is all of them."""

    allow_origins: tuple[str, ...] = ()

    def headers(self, request: Headers) -> Fields:
        """Return what every answer carries; a cache must know that it depends on the origin, also where there is none."""
        if not self.allow_origins:
            return ()
        vary = () if ANY in self.allow_origins else (("Vary", "Origin"),)
        allowed = self._allowed(request)
        if allowed is None:
            return vary
        exposed = ", ".join(EXPOSED)
        return (("Access-Control-Allow-Origin", allowed), ("Access-Control-Expose-Headers", exposed), *vary)

    def preflight(self, method: str, request: Headers, methods: Iterable[str]) -> Fields | None:
        """Return the further headers of the answer to a preflight of an allowed origin, None if this is not one.

        `methods` are those of the path, none if it is not there.
        """
        asked = request.get("access-control-request-method")
        known = tuple(methods)
        if method != "OPTIONS" or asked is None or not known or self._allowed(request) is None:
            return None
        wanted = request.get("access-control-request-headers", "")
        return (
            ("Access-Control-Allow-Methods", ", ".join(known)),
            *((("Access-Control-Allow-Headers", wanted),) if wanted and _FIELD_NAMES.fullmatch(wanted) else ()),
            ("Access-Control-Max-Age", str(PREFLIGHT_AGE_S)),
        )

    def _allowed(self, request: Headers) -> str | None:
        origins = request.get_all("origin")
        if len(origins) != 1:
            return None
        if ANY in self.allow_origins:
            return ANY
        return origins[0] if origins[0] in self.allow_origins else None
