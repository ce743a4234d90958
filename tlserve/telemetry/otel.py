"""Spans by OpenTelemetry: the extra `tlserve[otel]`.

Owns the provider (its own one: the global provider of the process is left alone). Does not know the facts in a span
(`span_facts`). Further options (the service's name, headers for the collector, the sampler) come from the variables OTEL_*, which
the package itself reads.
"""

from __future__ import annotations

import importlib
from typing import Any

import attrs
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tlserve.telemetry.request_log import RequestRecord
from tlserve.telemetry.span_facts import span_facts
from tlserve.telemetry.tracing import TRACEPARENT, TRACESTATE

_PROPAGATOR = TraceContextTextMapPropagator()
_EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"


def otlp_processor(endpoint: str) -> SpanProcessor:
    """Return a processor that sends spans to the collector at `endpoint`, in batches, from its own thread; raises ImportError."""
    exporter: Any = importlib.import_module(_EXPORTER)
    return BatchSpanProcessor(exporter.OTLPSpanExporter(endpoint=endpoint))


class OtelTracer:
    """A `tracing.Tracer` whose spans go to `processor`."""

    def __init__(self, processor: SpanProcessor, version: str) -> None:
        self._provider = TracerProvider(resource=_resource(version), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("tlserve", version)

    def start(self, traceparent: str | None, tracestate: str | None, wall_s: float) -> OtelSpan:
        """Open the span of a request that arrived at `wall_s`."""
        named = {TRACEPARENT: traceparent, TRACESTATE: tracestate}
        caller = _PROPAGATOR.extract({name: value for name, value in named.items() if value is not None})
        start_ns = int(wall_s * 1e9)
        return OtelSpan(self._tracer.start_span("request", caller, SpanKind.SERVER, start_time=start_ns), start_ns)

    def close(self) -> None:
        """Send the remaining spans to the collector."""
        self._provider.shutdown()


@attrs.frozen(eq=False)
class OtelSpan:
    """A `tracing.RequestSpan`."""

    span: Span
    start_ns: int

    @property
    def traceparent(self) -> str:
        """The header that names this span to other programs."""
        context = self.span.get_span_context()
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"

    @property
    def trace_id(self) -> str:
        """The id of its trace."""
        return f"{self.span.get_span_context().trace_id:032x}"

    def end(self, record: RequestRecord) -> None:
        """Fill the span from the record and end it at the time of the record."""
        facts = span_facts(record)
        self.span.update_name(facts.name)
        self.span.set_attributes(dict(facts.attributes))
        for name, offset_ms in facts.events.items():
            self.span.add_event(name, timestamp=self._at(offset_ms))
        if facts.failed:
            self.span.set_status(Status(StatusCode.ERROR))
        self.span.end(self._at(record.total_ms or 0.0))

    def _at(self, offset_ms: float) -> int:
        return self.start_ns + int(offset_ms * 1e6)


def _resource(version: str) -> Resource:
    found = Resource.create({SERVICE_VERSION: version})
    nameless = str(found.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service")
    return found.merge(Resource({SERVICE_NAME: "tlserve"})) if nameless else found
