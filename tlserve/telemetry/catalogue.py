"""The one table of metrics: name, kind, labels, unit, and a line of help each.

Owns the names; whatever is exposed is looked up here, and `specs/metrics.yaml` is the output of
`python -m tlserve.telemetry.catalogue`. Refuses to know values. Sources: the Prometheus naming practices, and for the first
seven names the server that this one follows.
"""

from __future__ import annotations

import json
from typing import Literal

import attrs


@attrs.frozen
class Metric:
    """A row: a counter's name ends in `_total`; every label takes values from a set that no client can widen."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    unit: str
    labels: tuple[str, ...] = ()


KV_BLOCKS = Metric(
    "tl_engine_kv_blocks",
    "gauge",
    "Blocks of keys and values: used by live sequences, held by the prefix cache alone, or free.",
    "blocks",
    ("state",),
)
QUEUE_DEPTH = Metric("tl_engine_queue_depth", "gauge", "Requests that wait to run.", "requests")
ACTIVE_SEQUENCES = Metric("tl_engine_active_sequences", "gauge", "Sequences that run.", "sequences")
BATCH_TOKENS = Metric("tl_engine_batch_tokens", "gauge", "Rows of the latest step, prefill and decode.", "tokens")
PREFIX_CACHE_HIT_RATIO = Metric(
    "tl_engine_prefix_cache_hit_ratio",
    "gauge",
    "Prompt tokens that the prefix cache supplied, over those asked of it, since the start.",
    "ratio",
)
PREEMPTIONS = Metric(
    "tl_engine_preemptions_total", "counter", "Sequences sent back to the queue for want of blocks.", "sequences"
)
KV_EVICTIONS = Metric("tl_engine_kv_evictions_total", "counter", "Blocks that the prefix cache gave up.", "blocks")
PREFIX_CACHE_QUERIES = Metric(
    "tl_engine_prefix_cache_queries_total", "counter", "Prompt tokens asked of the prefix cache.", "tokens"
)
PREFIX_CACHE_HITS = Metric(
    "tl_engine_prefix_cache_hits_total", "counter", "Prompt tokens that the prefix cache supplied.", "tokens"
)
PROMPT_TOKENS = Metric("tl_engine_prompt_tokens_total", "counter", "Prompt tokens of admitted requests.", "tokens")
GENERATED_TOKENS = Metric("tl_engine_generated_tokens_total", "counter", "Tokens that were drawn.", "tokens")
DRAFTED_TOKENS = Metric("tl_engine_drafted_tokens_total", "counter", "Tokens that speculation proposed.", "tokens")
ACCEPTED_TOKENS = Metric("tl_engine_accepted_tokens_total", "counter", "Proposed tokens that were drawn.", "tokens")
FINISHED = Metric(
    "tl_engine_finished_total",
    "counter",
    "Sequences that left the engine: at a stop id, at their length, aborted (the client left, a stop string was met, a "
    "deadline or a drain came), or failed here.",
    "sequences",
    ("finish",),
)
STEPS = Metric("tl_engine_steps_total", "counter", "Steps of the engine.", "steps")
STEP_SECONDS = Metric("tl_engine_step_seconds_total", "counter", "Time spent in steps.", "seconds")
FORWARD_SECONDS = Metric("tl_engine_forward_seconds_total", "counter", "Time of it in the forward pass.", "seconds")
HTTP_REQUESTS = Metric(
    "tl_http_requests_total",
    "counter",
    "Requests that ended: by status (499: the client left before its answer was complete), and by the finish of the answer, "
    "empty where none was generated to its end.",
    "requests",
    ("route", "method", "status", "finish"),
)
BUILD_INFO = Metric("tl_build_info", "gauge", "Always 1; the labels say what runs.", "", ("version", "kernels"))

METRICS = (
    KV_BLOCKS,
    QUEUE_DEPTH,
    ACTIVE_SEQUENCES,
    BATCH_TOKENS,
    PREFIX_CACHE_HIT_RATIO,
    PREEMPTIONS,
    KV_EVICTIONS,
    PREFIX_CACHE_QUERIES,
    PREFIX_CACHE_HITS,
    PROMPT_TOKENS,
    GENERATED_TOKENS,
    DRAFTED_TOKENS,
    ACCEPTED_TOKENS,
    FINISHED,
    STEPS,
    STEP_SECONDS,
    FORWARD_SECONDS,
    HTTP_REQUESTS,
    BUILD_INFO,
)


def catalogue_yaml() -> str:
    """Return the table as YAML; strings are written as JSON strings, which YAML reads."""
    return "metrics:\n" + "".join(_entry(metric) for metric in METRICS)


def _entry(metric: Metric) -> str:
    fields = {"type": metric.kind, "unit": metric.unit, "labels": list(metric.labels), "help": metric.help}
    lines = [f"  {metric.name}:", *(f"    {name}: {json.dumps(value)}" for name, value in fields.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(catalogue_yaml(), end="")
