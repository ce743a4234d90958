"""The text of /metrics: the catalogue's rows filled from a snapshot.

Owns which number goes into which row. Refuses to keep state: the engine keeps its counters (`EngineStatistics`), the HTTP side
its own (`RequestCounts`). Source: the Prometheus text exposition format 0.0.4, written by prometheus-client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import attrs
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from tlserve.generation import EngineStatistics
from tlserve.telemetry import catalogue
from tlserve.telemetry.request_counts import RequestCounts

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Samples = Mapping[tuple[str, ...], float]
_FAMILIES: Mapping[str, type[GaugeMetricFamily | CounterMetricFamily]] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
}


def metrics_text(
    statistics: EngineStatistics, *, requests: RequestCounts | None = None, version: str = "", kernels: str = ""
) -> str:
    """Return the exposition of one snapshot, with every row of the catalogue, each once."""
    rows = dict(_engine_samples(statistics))
    rows[catalogue.HTTP_REQUESTS] = requests.totals() if requests else {}
    rows[catalogue.BUILD_INFO] = {(version, kernels): 1}
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(rows))
    return generate_latest(registry).decode()


def _engine_samples(now: EngineStatistics) -> Iterator[tuple[catalogue.Metric, Samples]]:
    yield catalogue.KV_BLOCKS, {("used",): now.kv_used, ("cached",): now.kv_cached, ("free",): now.kv_free}
    yield catalogue.FINISHED, _finished(now)
    for metric, value in _plain(now):
        yield metric, {(): value}


def _finished(now: EngineStatistics) -> Samples:
    return {
        ("stop",): now.finished_stop_total,
        ("length",): now.finished_length_total,
        ("aborted",): now.finished_aborted_total,
        ("failed",): now.finished_failed_total,
    }


def _plain(now: EngineStatistics) -> Iterator[tuple[catalogue.Metric, float]]:
    yield catalogue.QUEUE_DEPTH, now.queue_depth
    yield catalogue.ACTIVE_SEQUENCES, now.active_sequences
    yield catalogue.BATCH_TOKENS, now.batch_tokens
    yield catalogue.PREFIX_CACHE_HIT_RATIO, now.prefix_cache_hit_ratio
    yield catalogue.PREEMPTIONS, now.preemptions_total
    yield catalogue.KV_EVICTIONS, now.kv_evictions_total
    yield catalogue.PREFIX_CACHE_QUERIES, now.prefix_cache_queries_total
    yield catalogue.PREFIX_CACHE_HITS, now.prefix_cache_hits_total
    yield catalogue.PROMPT_TOKENS, now.prompt_tokens_total
    yield catalogue.GENERATED_TOKENS, now.generated_tokens_total
    yield catalogue.DRAFTED_TOKENS, now.drafted_tokens_total
    yield catalogue.ACCEPTED_TOKENS, now.accepted_tokens_total
    yield catalogue.STEPS, now.steps_total
    yield catalogue.STEP_SECONDS, now.step_seconds_total
    yield catalogue.FORWARD_SECONDS, now.forward_seconds_total


@attrs.frozen(eq=False)
class _Snapshot(Collector):
    """What prometheus-client asks for the families."""

    rows: Mapping[catalogue.Metric, Samples]

    def collect(self) -> Iterable[Metric]:
        """Return the families in the order of the catalogue."""
        return [_family(metric, self.rows[metric]) for metric in catalogue.METRICS]


def _family(metric: catalogue.Metric, samples: Samples) -> Metric:
    family = _FAMILIES[metric.kind](metric.name, metric.help, labels=metric.labels)
    for labels, value in sorted(samples.items()):
        family.add_metric(labels, value)
    return family
