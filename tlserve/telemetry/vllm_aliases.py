"""The same numbers under vLLM's names, for dashboards and autoscalers that use those.

Owns the names and the row of the catalogue behind each. There is an alias only where both mean the same: a number that tlserve
does not have is left out. Source: vLLM's metrics of 2025 (its version 1 engine), which have the colon in their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import attrs

from tlserve.generation import Distribution, EngineStatistics
from tlserve.telemetry import catalogue

Value = float | Distribution
Samples = Mapping[tuple[str, ...], Value]

MODEL_LABEL = "model_name"
_FINISHES = {"aborted": "abort", "failed": "error"}


@attrs.frozen
class Alias:
    """A name of vLLM. Its samples are those of `row`, or what `compute` returns, with the label of the model."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    row: catalogue.Metric
    labels: tuple[str, ...] = ()
    compute: Callable[[EngineStatistics], float] | None = None

    @property
    def source(self) -> str:
        """Return the source of the number, for the reference page."""
        return f"`{self.row.name}`" + (": used over all" if self.compute else "")

    def samples(self, model: str, now: EngineStatistics, rows: Mapping[catalogue.Metric, Samples]) -> Samples:
        """Return the samples of one model; `rows` are those of the catalogue."""
        if self.compute is not None:
            return {(model,): self.compute(now)}
        return {(model, *(_FINISHES.get(label, label) for label in labels)): v for labels, v in rows[self.row].items()}


def _kv_usage(now: EngineStatistics) -> float:
    return now.kv_used / ((now.kv_used + now.kv_cached + now.kv_free) or 1)


ALIASES = (
    Alias("vllm:num_requests_running", "gauge", catalogue.ACTIVE_SEQUENCES),
    Alias("vllm:num_requests_waiting", "gauge", catalogue.QUEUE_DEPTH),
    Alias("vllm:kv_cache_usage_perc", "gauge", catalogue.KV_BLOCKS, compute=_kv_usage),
    Alias("vllm:prefix_cache_queries_total", "counter", catalogue.PREFIX_CACHE_QUERIES),
    Alias("vllm:prefix_cache_hits_total", "counter", catalogue.PREFIX_CACHE_HITS),
    Alias("vllm:num_preemptions_total", "counter", catalogue.PREEMPTIONS),
    Alias("vllm:prompt_tokens_total", "counter", catalogue.PROMPT_TOKENS),
    Alias("vllm:generation_tokens_total", "counter", catalogue.GENERATED_TOKENS),
    Alias("vllm:request_success_total", "counter", catalogue.ANSWERED, ("finished_reason",)),
    Alias("vllm:iteration_tokens_total", "histogram", catalogue.STEP_ROWS),
    Alias("vllm:request_queue_time_seconds", "histogram", catalogue.QUEUE_TIME),
    Alias("vllm:time_to_first_token_seconds", "histogram", catalogue.FIRST_TOKEN_TIME),
    Alias("vllm:request_time_per_output_token_seconds", "histogram", catalogue.TOKEN_TIME),
    Alias("vllm:e2e_request_latency_seconds", "histogram", catalogue.DURATION),
    Alias("vllm:request_prompt_tokens", "histogram", catalogue.PROMPT_LENGTH),
    Alias("vllm:request_generation_tokens", "histogram", catalogue.OUTPUT_LENGTH),
)
