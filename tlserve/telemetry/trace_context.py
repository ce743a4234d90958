"""Which trace a request belongs to, as its caller says it: the header `traceparent`.

Owns the reading of one header. What is not exactly well-formed is no trace context at all, as the standard wants it. Source: W3C
Trace Context, section 3.2.
"""

from __future__ import annotations

import re

TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"

_FORM = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<trace>[0-9a-f]{32})-(?P<parent>[0-9a-f]{16})-[0-9a-f]{2}(?P<more>-.*)?"
)


def trace_id_of(traceparent: str | None) -> str | None:
    """Return the trace's id, 32 hex digits; None without a well-formed `traceparent`."""
    match = _FORM.fullmatch(traceparent or "")
    if match is None or match["version"] == "ff" or (match["version"] == "00" and match["more"]):
        return None
    return match["trace"] if match["trace"].strip("0") and match["parent"].strip("0") else None
