"""The one table of metrics: name, kind, labels, unit, buckets, and a line of help each.

Owns the names: every metric that is exposed is a row here. `specs/metrics.yaml` and `docs/reference/metrics.md` are made from it.
Does not know values. Sources: the Prometheus naming practices, and for the first seven names the server that this one follows.

Buckets are chosen for CPUs: a step of a small model takes from a tenth of a millisecond (the built-in bigram) to a second
(a long chunk of prefill), and an answer up to minutes.
"""

from __future__ import annotations

from typing import Literal

import attrs

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""The type of the text of /metrics."""


@attrs.frozen
class Metric:
    """A row: a counter's name ends in `_total`; no client can add values to a label.

    `buckets` are the inclusive upper bounds of a histogram, without the bucket of all values.
    """

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    unit: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


WAITS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
STEPS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
LENGTHS = (1, 4, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


KV_BLOCKS = Metric(
    "tl_engine_kv_blocks",
    "gauge",
    "Blocks of keys and values: used by live sequences, held only by the prefix cache, or free.",
    "blocks",
    ("state",),
)
QUEUE_DEPTH = Metric("tl_engine_queue_depth", "gauge", "Requests that are waiting.", "requests")
ACTIVE_SEQUENCES = Metric("tl_engine_active_sequences", "gauge", "Sequences that are running.", "sequences")
BATCH_TOKENS = Metric("tl_engine_batch_tokens", "gauge", "Rows of the latest step, prefill and decode.", "tokens")
PREFIX_CACHE_HIT_RATIO = Metric(
    "tl_engine_prefix_cache_hit_ratio",
    "gauge",
    "Prompt tokens found in the prefix cache, over all prompt tokens looked up, since the start.",
    "ratio",
)
PREEMPTIONS = Metric(
    "tl_engine_preemptions_total",
    "counter",
    "Sequences sent back to the queue because blocks were missing.",
    "sequences",
)
KV_EVICTIONS = Metric("tl_engine_kv_evictions_total", "counter", "Blocks that the prefix cache has evicted.", "blocks")
PREFIX_CACHE_QUERIES = Metric(
    "tl_engine_prefix_cache_queries_total",
    "counter",
    "Prompt tokens looked up in the prefix cache, once for each request.",
    "tokens",
)
PREFIX_CACHE_HITS = Metric(
    "tl_engine_prefix_cache_hits_total",
    "counter",
    "Prompt tokens found in the prefix cache, once for each request.",
    "tokens",
)
PROMPT_TOKENS = Metric("tl_engine_prompt_tokens_total", "counter", "Prompt tokens of admitted requests.", "tokens")
GENERATED_TOKENS = Metric("tl_engine_generated_tokens_total", "counter", "Tokens that have been drawn.", "tokens")
DRAFTED_TOKENS = Metric("tl_engine_drafted_tokens_total", "counter", "Tokens that speculation proposed.", "tokens")
ACCEPTED_TOKENS = Metric("tl_engine_accepted_tokens_total", "counter", "Proposed tokens that were accepted.", "tokens")
FINISHED = Metric(
    "tl_engine_finished_total",
    "counter",
    "Sequences that have left the engine: at a stop id, at their length, aborted (the client left, a stop string was found, a "
    "deadline passed, or the server drained), or failed.",
    "sequences",
    ("finish",),
)
ANSWERED = Metric(
    "tl_answers_total",
    "counter",
    "Requests for text that have ended: stop (a stop id, a stop string, or calls), length, aborted (the client left), or failed, "
    "also after the head of the answer. Of several answers the last one counts. Refused requests are not counted.",
    "requests",
    ("finish",),
)
STEPS = Metric("tl_engine_steps_total", "counter", "Steps of the engine.", "steps")
STEP_SECONDS = Metric("tl_engine_step_seconds_total", "counter", "Time spent in steps.", "seconds")
FORWARD_SECONDS = Metric("tl_engine_forward_seconds_total", "counter", "Time spent in the forward pass.", "seconds")
MODEL_LOADED = Metric(
    "tl_model_loaded", "gauge", "1 while the model is in memory and can answer at once, else 0.", "boolean"
)
MODEL_MEMORY = Metric(
    "tl_model_memory_bytes",
    "gauge",
    "Memory that the model takes or has reserved: its weights, and its keys and values when full; 0 while it is not loaded.",
    "bytes",
)
MODEL_LOADS = Metric("tl_model_loads_total", "counter", "Times that the model was loaded, the start included.", "loads")
MODEL_LOAD_FAILURES = Metric(
    "tl_model_load_failures_total",
    "counter",
    "Loads that failed: files that are missing or damaged, or no room.",
    "loads",
)
MODEL_UNLOADS = Metric(
    "tl_model_unloads_total", "counter", "Times that the model left the memory: idle, or for another model.", "unloads"
)
MODEL_LOAD_SECONDS = Metric(
    "tl_model_load_seconds_total", "counter", "Time spent in loading the model on demand.", "seconds"
)
HTTP_REQUESTS = Metric(
    "tl_http_requests_total",
    "counter",
    "Requests that have ended: by status (499: the client left, or cancelled the request by its id), and by the finish of the "
    "answer, empty if no answer was generated to its end.",
    "requests",
    ("route", "method", "status", "finish"),
)
HTTP_CONNECTIONS = Metric(
    "tl_http_connections", "gauge", "Open connections of the API, with and without a request.", "connections"
)
STEP_DURATION = Metric(
    "tl_engine_step_duration_seconds", "histogram", "Time of one step of the engine.", "seconds", (), STEPS_S
)
STEP_ROWS = Metric(
    "tl_engine_step_rows",
    "histogram",
    "Rows of one step: tokens of prompts and answers that are computed together.",
    "tokens",
    (),
    ROWS,
)
QUEUE_TIME = Metric(
    "tl_request_queue_time_seconds",
    "histogram",
    "From the end of reading the request to the start of its prefill.",
    "seconds",
    (),
    WAITS_S,
)
FIRST_TOKEN_TIME = Metric(
    "tl_request_time_to_first_token_seconds",
    "histogram",
    "From the arrival of the request to the first token of its answer.",
    "seconds",
    (),
    WAITS_S,
)
TOKEN_TIME = Metric(
    "tl_request_time_per_output_token_seconds",
    "histogram",
    "Mean time between the tokens of one answer, without the first.",
    "seconds",
    (),
    STEPS_S,
)
DURATION = Metric(
    "tl_request_duration_seconds",
    "histogram",
    "From the arrival of a request to the end of its answer, for requests with a complete answer of a model.",
    "seconds",
    (),
    WAITS_S,
)
PROMPT_LENGTH = Metric(
    "tl_request_prompt_tokens", "histogram", "Prompt tokens of requests with a complete answer.", "tokens", (), LENGTHS
)
OUTPUT_LENGTH = Metric("tl_request_output_tokens", "histogram", "Tokens of complete answers.", "tokens", (), LENGTHS)
FLEET_NODES = Metric(
    "tl_fleet_nodes",
    "gauge",
    "Nodes that a head knows: ready, draining, or away (out of reach, stalled, or of another model). 0 if this is not a head.",
    "nodes",
    ("state",),
)
FLEET_LOSSES = Metric("tl_fleet_node_losses_total", "counter", "Times that the head has lost a node.", "nodes")
FLEET_MOVES = Metric("tl_fleet_moves_total", "counter", "Running answers that were moved to another node.", "requests")
BUILD_INFO = Metric(
    "tl_build_info", "gauge", "Always 1; the labels name the version and the kernels.", "", ("version", "kernels")
)

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
    ANSWERED,
    STEPS,
    STEP_SECONDS,
    FORWARD_SECONDS,
    STEP_DURATION,
    STEP_ROWS,
    QUEUE_TIME,
    FIRST_TOKEN_TIME,
    TOKEN_TIME,
    DURATION,
    PROMPT_LENGTH,
    OUTPUT_LENGTH,
    MODEL_LOADED,
    MODEL_MEMORY,
    MODEL_LOADS,
    MODEL_LOAD_FAILURES,
    MODEL_UNLOADS,
    MODEL_LOAD_SECONDS,
    HTTP_REQUESTS,
    HTTP_CONNECTIONS,
    FLEET_NODES,
    FLEET_LOSSES,
    FLEET_MOVES,
    BUILD_INFO,
)
