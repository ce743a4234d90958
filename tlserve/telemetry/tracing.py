"""The interface between a request and its tracer, and the trace that a caller names in the header `traceparent`.

Owns the two protocols and the reading of that header. A header that is not well-formed counts as no trace, as the standard
requires. Knows nothing of OpenTelemetry: `tlserve.telemetry.otel` implements the protocols, and is imported only if traces are
requested. Source: W3C Trace Context, section 3.2.
"""

from __future__ import annotations

import re
from typing import Protocol

from tlserve.telemetry.request_log import RequestRecord

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"

_FORM = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<parent>[0-9a-f]{16})-[0-9a-f]{2}(?P<more>-.*)?"
)


class RequestSpan(Protocol):
    """One request's span, open until `end`."""

    @property
    def traceparent(self) -> str:
        """The header that names this span to other programs."""

    @property
    def trace_id(self) -> str:
        """The id of its trace, 32 hex digits."""

    def end(self, record: RequestRecord) -> None:
        """Take what is known of the request, and end the span."""


class Tracer(Protocol):
    """Opens spans."""

    def start(self, traceparent: str | None, tracestate: str | None, wall_s: float) -> RequestSpan:
        """Open the span of a request that arrived at `wall_s` (Unix time), as a child of the span in `traceparent`, if any."""

    def close(self) -> None:
        """Send the remaining spans; can wait for the collector."""


def trace_id_of(traceparent: str | None) -> str | None:
    """Return the id of the trace, 32 hex digits; None without a well-formed `traceparent`."""
    match = _FORM.fullmatch(traceparent or "")
    if match is None or match["version"] == "ff" or (match["version"] == "00" and match["more"]):
        return None
    return match["trace"] if match["trace"].strip("0") and match["parent"].strip("0") else None
