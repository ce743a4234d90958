"""The text of /metrics: the catalogue's rows filled from snapshots.

Owns the mapping of numbers to rows. Has no state: the engine has its counters (`EngineStatistics`), and the HTTP side has its own
(`RequestCounts`, `RequestHistograms`). Source: the Prometheus text exposition format 0.0.4, written by prometheus-client.

With one model, the rows have the labels of the catalogue; with several, those of an engine also have the label `model`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from types import MappingProxyType

import attrs
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from tlserve.generation import Distribution, EngineStatistics, ModelState, ModelStatus
from tlserve.telemetry import catalogue
from tlserve.telemetry.fleet_figures import NO_FLEET, FleetFigures
from tlserve.telemetry.request_counts import RequestCounts
from tlserve.telemetry.request_histograms import RequestHistograms
from tlserve.telemetry.vllm_aliases import ALIASES, MODEL_LABEL, Alias, Samples

Rows = Mapping[catalogue.Metric, Samples]
_NOT_LOADED = ModelStatus(state=ModelState.UNLOADED)


def metrics_text(
    engines: Mapping[str, EngineStatistics],
    *,
    requests: RequestCounts | None = None,
    connections: int = 0,
    histograms: RequestHistograms | None = None,
    models: Mapping[str, ModelStatus] = MappingProxyType({}),
    fleet: FleetFigures = NO_FLEET,
    version: str = "",
    kernels: str = "",
    vllm_aliases: bool = False,
) -> str:
    """Return the exposition of one snapshot, with every row of the catalogue once; `engines` and `models` by their served ids."""
    shown = engines or {"": EngineStatistics()}
    counted = histograms or RequestHistograms()
    rows = {
        model: {**_model_rows(model, now, counted), **_residency_rows(models.get(model, _NOT_LOADED))}
        for model, now in shown.items()
    }
    own: Rows = {
        catalogue.HTTP_REQUESTS: requests.totals() if requests else {},
        catalogue.HTTP_CONNECTIONS: {(): connections},
        **_fleet_samples(fleet),
        catalogue.BUILD_INFO: {(version, kernels): 1},
    }
    families = [
        _family(metric, own[metric]) if metric in own else _model_family(metric, rows) for metric in catalogue.METRICS
    ]
    aliases = [_alias_family(alias, shown, rows) for alias in ALIASES] if vllm_aliases else []
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot([*families, *aliases]))
    return generate_latest(registry).decode()


def _model_rows(model: str, now: EngineStatistics, histograms: RequestHistograms) -> Rows:
    ends: Samples = {(finish,): count for finish, count in histograms.ends(model).items()}
    observed: Rows = {row: {(): counts} for row, counts in histograms.snapshot(model).items()}
    return {**dict(_engine_samples(now)), catalogue.ANSWERED: ends, **observed}


def _residency_rows(status: ModelStatus) -> Rows:
    values: dict[catalogue.Metric, float] = {
        catalogue.MODEL_LOADED: status.state is ModelState.LOADED,
        catalogue.MODEL_MEMORY: status.memory_bytes,
        catalogue.MODEL_LOADS: status.loads_total,
        catalogue.MODEL_LOAD_FAILURES: status.load_failures_total,
        catalogue.MODEL_UNLOADS: status.unloads_total,
        catalogue.MODEL_LOAD_SECONDS: status.load_seconds_total,
    }
    return {metric: {(): value} for metric, value in values.items()}


def _engine_samples(now: EngineStatistics) -> Iterator[tuple[catalogue.Metric, Samples]]:
    yield catalogue.KV_BLOCKS, {("used",): now.kv_used, ("cached",): now.kv_cached, ("free",): now.kv_free}
    yield catalogue.FINISHED, _finished(now)
    for metric, value in _plain(now):
        yield metric, {(): value}
    yield catalogue.STEP_DURATION, {(): now.step_durations_s}
    yield catalogue.STEP_ROWS, {(): now.step_rows}


def _fleet_samples(fleet: FleetFigures) -> Rows:
    states: Samples = {("ready",): fleet.nodes_ready, ("draining",): fleet.nodes_draining, ("away",): fleet.nodes_away}
    return {
        catalogue.FLEET_NODES: states,
        catalogue.FLEET_LOSSES: {(): fleet.losses_total},
        catalogue.FLEET_MOVES: {(): fleet.moves_total},
    }


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


# --- families ------------------------------------------------------------------------------------------------------------


@attrs.frozen(eq=False)
class _Snapshot(Collector):
    """The collector that prometheus-client reads the families from."""

    families: list[Metric]

    def collect(self) -> Iterable[Metric]:
        """Return the families in their order."""
        return self.families


def _model_family(metric: catalogue.Metric, rows: Mapping[str, Rows]) -> Metric:
    if len(rows) == 1:
        return _family(metric, next(iter(rows.values()))[metric])
    labelled = {(model, *labels): value for model, own in rows.items() for labels, value in own[metric].items()}
    return _family(attrs.evolve(metric, labels=("model", *metric.labels)), labelled)


def _alias_family(alias: Alias, engines: Mapping[str, EngineStatistics], rows: Mapping[str, Rows]) -> Metric:
    samples: dict[tuple[str, ...], float | Distribution] = {}
    for model, now in engines.items():
        samples |= alias.samples(model, now, rows[model])
    labels = (MODEL_LABEL, *alias.labels)
    help_ = f"The same as {alias.row.name}."
    return _family(catalogue.Metric(alias.name, alias.kind, help_, "", labels, alias.row.buckets), samples)


def _family(metric: catalogue.Metric, samples: Samples) -> Metric:
    if metric.kind == "histogram":
        return _histogram_family(metric, samples)
    cls = GaugeMetricFamily if metric.kind == "gauge" else CounterMetricFamily
    family: Metric = cls(metric.name, metric.help, labels=metric.labels)
    for labels, value in sorted(samples.items()):
        family.add_metric(labels, value)  # type: ignore[attr-defined]
    return family


def _histogram_family(metric: catalogue.Metric, samples: Samples) -> Metric:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, value in sorted(samples.items(), key=lambda item: item[0]):
        assert isinstance(value, Distribution)
        family.add_metric(labels, _cumulative(metric, value), value.total)
    return family


def _cumulative(metric: catalogue.Metric, found: Distribution) -> list[tuple[str, float]]:
    """Return (upper bound, values up to it) for each bucket; all are 0 for an engine that has not counted yet."""
    bounds = found.bounds or metric.buckets
    counts = found.counts if found.bounds else (0,) * (len(bounds) + 1)
    return list(zip([*map(str, map(float, bounds)), "+Inf"], map(float, accumulate(counts)), strict=True))
