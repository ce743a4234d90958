"""One line per request: its id, its route, how it ended, how long it took; never the text of a prompt or an answer.

Owns the record and its form. A value from a client is quoted as a JSON string in ASCII if it has other than plain characters, so
that no request can begin a new line or move the cursor of a terminal.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping

import attrs

from tlserve.telemetry.logs import LogEvent

_log = logging.getLogger("tlserve.request")
_PLAIN = re.compile(r"[A-Za-z0-9._:/@+-]+")
_LONGEST = 200


@attrs.frozen(kw_only=True)
class RequestRecord:
    """The facts of one answered request. Times are in milliseconds from the arrival; None is left out of the line.

    `error` is the code of an error, or its type if it has no code, and `param` the wrong field; the message is not logged,
    because it can quote the request. `key` is the name of the API key, never the key; `trace_id` is that of the caller's trace,
    or of tlserve's own.
    """

    request_id: str
    method: str
    path: str
    status: int
    error: str | None = None
    param: str | None = None
    key: str | None = None
    model: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    finish: str | None = None
    prepared_ms: float | None = None
    load_ms: float | None = None
    queue_ms: float | None = None
    first_token_ms: float | None = None
    total_ms: float | None = None
    trace_id: str | None = None

    @property
    def is_complete(self) -> bool:
        """Say whether a complete answer was sent; a generated answer also needs a finish."""
        generated = self.completion_tokens is not None
        return self.status == 200 and self.finish != "error" and (self.finish is not None or not generated)


@attrs.define(kw_only=True)
class RequestFigures:
    """What becomes known of a request while it is answered; a field is None until then. `record` makes the record of it.

    Of a request with several answers the counts are sums, and the times those of its first answer. `began`: work was done for
    it, so that its tokens count.
    """

    error: str | None = None
    param: str | None = None
    key: str | None = None
    model: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    finish: str | None = None
    prepared_ms: float | None = None
    load_ms: float | None = None
    queue_ms: float | None = None
    first_token_ms: float | None = None
    trace_id: str | None = None
    began: bool = False

    @property
    def used_tokens(self) -> int:
        """Return the tokens that the request has used: none if it only counts them, or never left the queue."""
        return (self.prompt_tokens or 0) + (self.completion_tokens or 0) if self.began else 0

    def note_load(self, waited_s: float) -> None:
        """Note how long the request waited for its model to be loaded, if it did."""
        if waited_s:
            self.load_ms = waited_s * 1000

    def note_start(self, cached_tokens: int, at_ms: float) -> None:
        """Note that an answer has left the queue."""
        self.began = True
        self.cached_tokens = (self.cached_tokens or 0) + cached_tokens
        if self.queue_ms is None:
            self.queue_ms = at_ms

    def note_first_token(self, at_ms: float) -> None:
        """Note the first token of an answer."""
        if self.first_token_ms is None:
            self.first_token_ms = at_ms

    def record(self, *, request_id: str, method: str, path: str, status: int, total_ms: float) -> RequestRecord:
        """Return the record of the request, which has ended."""
        return RequestRecord(
            request_id=request_id,
            method=method,
            path=path,
            status=status,
            error=self.error,
            param=self.param,
            key=self.key,
            model=self.model,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=self.cached_tokens,
            completion_tokens=self.completion_tokens,
            finish=self.finish,
            prepared_ms=self.prepared_ms,
            load_ms=self.load_ms,
            queue_ms=self.queue_ms,
            first_token_ms=self.first_token_ms,
            total_ms=total_ms,
            trace_id=self.trace_id,
        )


def log_request(record: RequestRecord) -> None:
    """Log the record: as a warning for a fault of the server (status 5xx), else as information."""
    level = logging.WARNING if record.status >= 500 else logging.INFO
    if _log.isEnabledFor(level):
        fields = request_fields(record)
        summary = f"{fields['method']} {fields['path']} {record.status}"
        _log.log(level, LogEvent("request", summary, (request_line(record),), fields))


def request_fields(record: RequestRecord) -> Mapping[str, object]:
    """Return all fields of the record under their stable names, null for unknown ones."""
    return {_NAMES.get(name, name): _shown(value) for name, value in attrs.asdict(_without_query(record)).items()}


def _without_query(record: RequestRecord) -> RequestRecord:
    return attrs.evolve(record, path=record.path.partition("?")[0])


def _shown(value: object) -> object:
    if isinstance(value, float):
        return round(value, 1)
    return _cut(value) if isinstance(value, str) else value


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def request_line(record: RequestRecord) -> str:
    """Return the record as `name=value` pairs on one line of printable ASCII, without the query, which can have secrets."""
    pairs = attrs.asdict(_without_query(record)).items()
    return " ".join(f"{_NAMES.get(name, name)}={_value(value)}" for name, value in pairs if value is not None)


_NAMES = {"request_id": "id"}


def _value(value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    cut = _cut(str(value))
    return cut if _PLAIN.fullmatch(cut) else json.dumps(cut)
