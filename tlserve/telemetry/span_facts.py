"""The content of a request's span: its name, its attributes, and its events.

Owns the names; all values come from the request's log record, so that a span never has the text of a prompt or an answer. Knows
nothing of OpenTelemetry's package. Source: the semantic conventions for HTTP server spans and, in development, for generative AI
spans.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from tlserve.telemetry.request_counts import METHODS
from tlserve.telemetry.request_log import RequestRecord

Attribute = str | int | tuple[str, ...]

OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
_LONGEST_PATH = 200


@attrs.frozen
class SpanFacts:
    """The content of a span; the times of `events` are in milliseconds from its start."""

    name: str
    attributes: Mapping[str, Attribute]
    events: Mapping[str, float]
    failed: bool


def span_facts(record: RequestRecord) -> SpanFacts:
    """Return the content of the span of a request that has ended; only a fault of the server counts as failed."""
    failed = record.status >= 500 or record.finish == "error"
    return SpanFacts(_name(record), _attributes(record), _events(record), failed)


def _method(record: RequestRecord) -> str:
    return record.method if record.method in METHODS else "_OTHER"


def _route(record: RequestRecord) -> str:
    return record.path.partition("?")[0]


def _name(record: RequestRecord) -> str:
    """Return one of a few names: the operation and the served model, or only the method."""
    operation = OPERATIONS.get(_route(record))
    if operation is None:
        return _method(record).replace("_OTHER", "HTTP")
    return operation if record.model is None else f"{operation} {record.model}"


def _attributes(record: RequestRecord) -> Mapping[str, Attribute]:
    route = _route(record)
    found: Mapping[str, Attribute | None] = {
        "http.request.method": _method(record),
        "http.route": route if route in OPERATIONS else None,
        "url.path": route[:_LONGEST_PATH],
        "http.response.status_code": record.status,
        "error.type": _error_type(record),
        "gen_ai.operation.name": OPERATIONS.get(route),
        "gen_ai.provider.name": "tlserve" if record.model is not None else None,
        "gen_ai.request.model": record.model,
        "gen_ai.response.model": record.model,
        "gen_ai.response.finish_reasons": None if record.finish is None else (record.finish,),
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "tlserve.request_id": record.request_id,
        "tlserve.key": record.key,
    }
    return {name: value for name, value in found.items() if value is not None}


def _error_type(record: RequestRecord) -> str | None:
    if record.status >= 500:
        return str(record.status)
    return "stream_error" if record.finish == "error" else None


def _events(record: RequestRecord) -> Mapping[str, float]:
    found = {
        "queued": record.prepared_ms,
        "prefill started": record.queue_ms,
        "first token": record.first_token_ms,
        "finished": record.total_ms if record.finish is not None else None,
    }
    return {name: offset_ms for name, offset_ms in found.items() if offset_ms is not None}
