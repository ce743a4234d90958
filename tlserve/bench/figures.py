"""The figures of one run: rates over the whole run, percentiles over its requests.

Owns the arithmetic. Does not know where outcomes come from and how figures are shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import attrs

from tlserve.bench.samples import Failure, Outcome, Sample


@attrs.frozen(kw_only=True)
class Percentiles:
    """Times in milliseconds that half, nine tenths, and ninety-nine hundredths of the requests did not exceed."""

    p50: float
    p90: float
    p99: float


@attrs.frozen(kw_only=True)
class Figures:
    """The figures of one run; times are in milliseconds, None if no request was answered (or no answer had a second token).

    `errors` counts the failed requests by kind. `counted` is false if pieces were counted instead of tokens.
    `prefill_tokens_per_s` is that of the prompts of a prefill run, whose answers had one token; None without such a run.
    `outside_forward` is the share of the engine's steps outside the forward pass, if the engine is in this process.
    """

    requests: int
    answered: int
    seconds: float
    prompt_tokens: int
    output_tokens: int
    counted: bool
    output_tokens_per_s: float
    total_tokens_per_s: float
    requests_per_s: float
    first_token_ms: Percentiles | None
    per_token_ms: Percentiles | None
    whole_ms: Percentiles | None
    errors: Mapping[str, int]
    prefill_tokens_per_s: float | None = None
    outside_forward: float | None = None


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least `share` of `values` do not exceed (nearest rank)."""
    ordered = sorted(values)
    rank = -(-len(ordered) * share // 1)
    return ordered[max(0, int(rank) - 1)]


def percentiles_ms(seconds: Sequence[float]) -> Percentiles | None:
    """Return the percentiles of times in seconds, in milliseconds; None for an empty list."""
    if not seconds:
        return None
    p50, p90, p99 = (percentile(seconds, share) * 1000 for share in (0.5, 0.9, 0.99))
    return Percentiles(p50=p50, p90=p90, p99=p99)


def prefill_rate(outcomes: Sequence[Outcome]) -> float | None:
    """Return prompt tokens per second, from the first start to the last first token; None if no request was answered."""
    samples = [outcome for outcome in outcomes if isinstance(outcome, Sample)]
    if not samples:
        return None
    elapsed_s = max(sample.first_token_s for sample in samples) - min(sample.due_s for sample in samples)
    return sum(sample.prompt_tokens for sample in samples) / elapsed_s


def figures_of(
    outcomes: Sequence[Outcome], *, prefilled: Sequence[Outcome] = (), outside_forward: float | None = None
) -> Figures:
    """Return the figures of a run of at least one request.

    Rates are over the time from the first request's start to the last one's end, failed ones included.
    """
    samples = [outcome for outcome in outcomes if isinstance(outcome, Sample)]
    failures = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    seconds = max(outcome.ended_s for outcome in outcomes) - min(outcome.due_s for outcome in outcomes)
    prompt, output = sum(s.prompt_tokens for s in samples), sum(s.output_tokens for s in samples)
    per_token = [s.time_per_token_s for s in samples]
    return Figures(
        requests=len(outcomes),
        answered=len(samples),
        seconds=seconds,
        prompt_tokens=prompt,
        output_tokens=output,
        counted=all(s.counted for s in samples),
        output_tokens_per_s=output / seconds,
        total_tokens_per_s=(prompt + output) / seconds,
        requests_per_s=len(samples) / seconds,
        first_token_ms=percentiles_ms([s.time_to_first_token_s for s in samples]),
        per_token_ms=percentiles_ms([time_s for time_s in per_token if time_s is not None]),
        whole_ms=percentiles_ms([s.whole_time_s for s in samples]),
        errors=dict(Counter(failure.kind for failure in failures)),
        prefill_tokens_per_s=prefill_rate(prefilled),
        outside_forward=outside_forward,
    )
