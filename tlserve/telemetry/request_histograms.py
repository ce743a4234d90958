"""The times, lengths and ends of requests, by model, from their log records.

Owns the mapping of a record's facts to histograms and counts. Does not measure: the record has the times. One task observes: not
thread-safe. A request without a model (it was refused, or needs no model) is not counted here; `RequestCounts` has all requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from tlserve.generation import Distribution
from tlserve.telemetry import catalogue
from tlserve.telemetry.catalogue import Metric
from tlserve.telemetry.histogram import Histogram
from tlserve.telemetry.request_log import RequestRecord

ROWS = (
    catalogue.QUEUE_TIME,
    catalogue.FIRST_TOKEN_TIME,
    catalogue.TOKEN_TIME,
    catalogue.DURATION,
    catalogue.PROMPT_LENGTH,
    catalogue.OUTPUT_LENGTH,
)


ENDS = ("stop", "length", "aborted", "failed")
"""How a request for text can end."""

_CLIENT_GONE = 499
_CANCELLED = "cancelled"


class RequestHistograms:
    """One set of histograms, and the ends of the requests, for each model.

    The names of models are those that are served, never those that clients sent.
    """

    def __init__(self) -> None:
        self._models: dict[str, Mapping[Metric, Histogram]] = {}
        self._ends: Counter[tuple[str, str]] = Counter()

    def observe(self, record: RequestRecord) -> None:
        """Count the facts of `record`."""
        if record.model is not None:
            histograms = self._of(record.model)
            for metric, value in facts(record):
                histograms[metric].observe(value)
            end = end_of(record)
            if end is not None:
                self._ends[record.model, end] += 1

    def snapshot(self, model: str) -> Mapping[Metric, Distribution]:
        """Return the counts of one model, of every row."""
        return {metric: histogram.snapshot() for metric, histogram in self._of(model).items()}

    def ends(self, model: str) -> Mapping[str, int]:
        """Return the number of requests of one model for each of `ENDS`."""
        return {end: self._ends[model, end] for end in ENDS}

    def _of(self, model: str) -> Mapping[Metric, Histogram]:
        if model not in self._models:
            self._models[model] = {metric: Histogram(metric.buckets) for metric in ROWS}
        return self._models[model]


def end_of(record: RequestRecord) -> str | None:
    """Return which of `ENDS` a record has; None for one without an answer: it was refused, or is not for a text."""
    if record.error == _CANCELLED and record.prompt_tokens is not None:
        return "aborted"
    if record.finish == "error":
        return "failed"
    if record.status == _CLIENT_GONE and record.prompt_tokens is not None:
        return "aborted"
    if record.finish is not None:
        return "length" if record.finish == "length" else "stop"
    return "failed" if record.status >= 500 and record.queue_ms is not None else None


def facts(record: RequestRecord) -> Iterator[tuple[Metric, float]]:
    """Yield the facts of a record, by row; times are in seconds. A cut answer has its waits, but no end and no length."""
    if record.queue_ms is not None:
        yield catalogue.QUEUE_TIME, (record.queue_ms - (record.prepared_ms or 0.0)) / 1000
    if record.first_token_ms is not None:
        yield catalogue.FIRST_TOKEN_TIME, record.first_token_ms / 1000
    if record.is_complete:
        yield from _facts_of_the_whole(record)


def _facts_of_the_whole(record: RequestRecord) -> Iterator[tuple[Metric, float]]:
    tokens = record.completion_tokens or 0
    if record.total_ms is not None:
        yield catalogue.DURATION, record.total_ms / 1000
    if record.prompt_tokens is not None:
        yield catalogue.PROMPT_LENGTH, record.prompt_tokens
    if record.finish is not None:
        yield catalogue.OUTPUT_LENGTH, tokens
    if record.total_ms is not None and record.first_token_ms is not None and tokens > 1:
        yield catalogue.TOKEN_TIME, (record.total_ms - record.first_token_ms) / 1000 / (tokens - 1)
