"""Samples become figures: rates over the whole run, percentiles over its requests.

Owns the arithmetic. Refuses to know where samples come from and how figures are shown.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from tlserve.bench.load import Sample


@attrs.frozen(kw_only=True)
class Figures:
    """What one run of `streams` clients measured; rates in tokens per second, times in milliseconds."""

    streams: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    first_token_p50_ms: float
    first_token_p99_ms: float
    per_token_p50_ms: float
    per_token_p99_ms: float
    outside_forward: float | None = None


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of `values` do not exceed (nearest rank)."""
    ordered = sorted(values)
    rank = -(-len(ordered) * share // 1)
    return ordered[max(0, int(rank) - 1)]


def prefill_rate(samples: Sequence[Sample]) -> float:
    """Return prompt tokens per second, from the first start to the last first token."""
    elapsed_s = max(s.first_token_s for s in samples) - min(s.started_s for s in samples)
    return sum(s.prompt_tokens for s in samples) / elapsed_s


def decode_rate(samples: Sequence[Sample]) -> float:
    """Return output tokens per second, from the first start to the last token."""
    elapsed_s = max(s.last_token_s for s in samples) - min(s.started_s for s in samples)
    return sum(s.output_tokens for s in samples) / elapsed_s


def figures_of(
    streams: int, prefill: Sequence[Sample], decode: Sequence[Sample], outside_forward: float | None
) -> Figures:
    """Return the figures of one number of streams, from a run of one-token answers and one of longer answers."""
    first_ms = [s.time_to_first_token_s * 1000 for s in decode]
    per_token_ms = [s.time_per_token_s * 1000 for s in decode]
    return Figures(
        streams=streams,
        prefill_tokens_per_s=prefill_rate(prefill),
        decode_tokens_per_s=decode_rate(decode),
        first_token_p50_ms=percentile(first_ms, 0.5),
        first_token_p99_ms=percentile(first_ms, 0.99),
        per_token_p50_ms=percentile(per_token_ms, 0.5),
        per_token_p99_ms=percentile(per_token_ms, 0.99),
        outside_forward=outside_forward,
    )
