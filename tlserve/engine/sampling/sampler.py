"""From one row of logits to one token, and to the reported log-probabilities.

Owns the order of the filters, the rule for ties, and the random number of each draw. Knows nothing of sequences and batches:
each row is computed by itself, so that no bit of it can depend on its neighbours.

The order: penalties, DRY and bias (`logit_edits`), mask, temperature, top-k, top-p, min-p, draw; `sampler_chain` has further
filters and other orders. An edited logit is a float32 again; from the temperature on everything is float64, and `fixed_math`
has the sums. Log-probabilities are those of the unedited row. Among equal logits the lower id comes first. The draw of index i
uses the first number of Philox4x64-10 with key (seed, choice) and counter i, XTC the second (Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3", 2011), the upper 53 bits as a fraction: only mirostat carries anything from one draw to the next.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tlserve.engine.sampling import fixed_math
from tlserve.engine.sampling.constraint import allowed_ids
from tlserve.engine.sampling.interface import Draw, Drawn, NotSampled, SamplerRun
from tlserve.engine.sampling.logit_edits import LogitEdits
from tlserve.engine.sampling.ranks import best_ids, nucleus, weights_of
from tlserve.engine.sampling.sampler_chain import chain_of, draw_chain, draw_mirostat, first_mu
from tlserve.errors import ServerFault
from tlserve.generation import GenerationRequest, TokenLogprob
from tlserve.sampling_params import SamplingParams


class NumpySampler:
    """A `Sampler` that computes row after row, in numpy."""

    def draw(self, logits: NDArray[np.float32], runs: Sequence[SamplerRun]) -> list[Drawn]:
        """Draw for each run from its rows of logits: (rows of all runs, vocabulary_size) float32."""
        starts = np.cumsum([0, *(run.rows for run in runs)])
        return [_draw_run(logits[start:], run) for start, run in zip(starts, runs, strict=False)]


def _draw_run(logits: NDArray[np.float32], run: SamplerRun) -> Drawn:
    draws: list[Draw] = []
    try:
        for row, draft in zip(logits, (*run.drafts, None), strict=False):
            draws.append(_draw_row(row, run, len(draws)))
            if draws[-1].token != draft:
                break
    except ServerFault as fault:
        return Drawn(tuple(draws), fault)
    return Drawn(tuple(draws))


def _draw_row(logits: NDArray[np.float32], run: SamplerRun, row: int) -> Draw:
    edits = run.edits.after(run.drafts[:row]) if run.edits and row else run.edits
    if run.given is None:
        token, mu = draw(logits, run.request, run.index + row, run.mask(row), edits, run.mu)
    else:
        token, mu = run.given, None
    return Draw(token, mu=mu) if run.logprobs is None else with_logprobs(token, logits, run.logprobs, mu)


def draw(
    logits: NDArray[np.float32],
    request: GenerationRequest,
    index: int,
    mask: NDArray[np.uint32] | None = None,
    edits: LogitEdits | None = None,
    mu: float | None = None,
) -> tuple[int, float | None]:
    """Draw the token of `index` from logits: (vocabulary_size,) float32, as `request` says and `mask` allows.

    Also return mu for the next one, with mirostat; `mu` None: no token has been drawn.
    Raises NotSampled if the best logit, before or after `edits`, or the best allowed one is not finite, and ConstraintFailed if
    `mask` allows no token.
    """
    best = _best(logits)
    if edits is not None:
        logits = edits.edit(logits)
        best = _best(logits)
    allowed = None if mask is None else allowed_ids(mask, len(logits))
    best_allowed = best if allowed is None else int(allowed[_best(logits[allowed])])
    sampling, chain = request.sampling, chain_of(request.sampling)
    u, chance = uniforms(request.seed, request.choice, index)
    if sampling.mirostat:
        return draw_mirostat(logits, allowed, sampling, first_mu(sampling) if mu is None else mu, u)
    if chain is not None:
        return draw_chain(logits, allowed, sampling, chain, (u, chance)), None
    if sampling.temperature == 0:
        return best_allowed, None
    return _draw_token(logits, allowed, sampling, u), None


def with_logprobs(token: int, logits: NDArray[np.float32], count: int, mu: float | None = None) -> Draw:
    """Return `token` with its log-probability and the `count` best, all from logits: (vocabulary_size,) float32 without edits.

    Raises NotSampled if the best logit is not finite.
    """
    best = _best(logits)
    log_total = fixed_math.log(fixed_math.total(weights_of(logits, best, 1.0)))

    def logprob(id_: int) -> float:
        return (float(logits[id_]) - float(logits[best])) - log_total

    top = best_ids(logits, min(count, len(logits))) if count else ()
    return Draw(token, logprob(token), tuple(TokenLogprob(int(i), logprob(int(i))) for i in top), mu)


def _best(logits: NDArray[np.float32]) -> int:
    """Return the first place of the largest; raises NotSampled if that is not a finite number."""
    best = int(logits.argmax())
    if not np.isfinite(logits[best]):  # argmax finds a NaN first
        raise NotSampled
    return best


def uniforms(seed: int, choice: int, index: int) -> tuple[float, float]:
    """Return the random numbers of one draw, in [0, 1): that of the token, and that of XTC."""
    key = seed % 2**64 | choice % 2**64 << 64
    first, second = np.random.Philox(key=key, counter=index).random_raw(2).tolist()
    return (first >> 11) * 2.0**-53, (second >> 11) * 2.0**-53


def _draw_token(
    logits: NDArray[np.float32],
    allowed: NDArray[np.intp] | None,
    sampling: SamplingParams,
    u: float,
) -> int:
    """Filter and draw: `ids` are the remaining tokens, ascending (None: all), with their `logits` and `weights`."""
    ids, logits = allowed, logits if allowed is None else logits[allowed]
    if 0 < sampling.top_k < len(logits):
        kept = np.sort(best_ids(logits, sampling.top_k))
        ids, logits = _keep(ids, kept), logits[kept]
    weights = weights_of(logits, int(logits.argmax()), sampling.temperature)
    if sampling.top_p < 1:
        kept = nucleus(logits, weights, sampling.top_p)
        ids, weights = _keep(ids, kept), weights[kept]
    if sampling.min_p > 0:
        kept = np.flatnonzero(weights >= sampling.min_p)
        ids, weights = _keep(ids, kept), weights[kept]
    place = fixed_math.inverse_cdf(weights, u)
    return place if ids is None else int(ids[place])


def _keep(ids: NDArray[np.intp] | None, kept: NDArray[np.intp]) -> NDArray[np.intp]:
    return kept if ids is None else ids[kept]
