"""The seam between a request and its tracer.

Owns the two protocols. Refuses to know OpenTelemetry: `tlserve.telemetry.otel` implements them, and is imported only if traces
are asked for.
"""

from __future__ import annotations

from typing import Protocol

from tlserve.telemetry.request_log import RequestRecord


class RequestSpan(Protocol):
    """One request's span, open until `end`."""

    @property
    def traceparent(self) -> str:
        """The header that names this span to others."""

    @property
    def trace_id(self) -> str:
        """The id of its trace, 32 hex digits."""

    def end(self, record: RequestRecord) -> None:
        """Say what became of the request, and hand the span over."""


class Tracer(Protocol):
    """What opens spans."""

    def start(self, traceparent: str | None, tracestate: str | None, wall_s: float) -> RequestSpan:
        """Open the span of a request that came at `wall_s` (Unix time), below the caller's if `traceparent` names one."""

    def close(self) -> None:
        """Hand over what is left; may wait for the collector."""
