"""The filters that are not usual, in any order, and mirostat: from the logits of a row to its token.

Owns their arithmetic, and what they have in common: tokens that can still be drawn, with their logits and weights. Knows nothing
of edits and masks, which come before. A request that only uses temperature, top-k, top-p and min-p in their usual order is drawn
by `sampler`, in the same way but with less work. `sampler_chain.c` repeats this module.

Weights are exp((logit - best logit) / temperature), shares of them are compared in whole numbers (`fixed_math.shares`) or with
the total, and every total is a sum over lanes. Among equal logits the lower id is the better one, in XTC too.

Sources: `src/llama-sampler.cpp` of llama.cpp, in float32. Its papers: Meister et al., "Locally Typical Sampling", 2022; Basu et
al., "Mirostat: a neural text decoding algorithm that directly controls perplexity", 2020; Tang et al., "Top-n-sigma: not all
logits are you need", 2024.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from tlserve.engine.sampling import fixed_math
from tlserve.engine.sampling.ranks import best_ids, nucleus, weights_of
from tlserve.sampling_params import FILTERS, SamplingParams

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Places = NDArray[np.intp]

_HEAD = 100  # mirostat 1 estimates the exponent of Zipf's law from so many of the best tokens
_MOST_LOG = 40.0  # of the number of tokens that mirostat 1 keeps: beyond any vocabulary

_ACTIVE: Mapping[str, Callable[[SamplingParams], bool]] = {
    "top_n_sigma": lambda sampling: sampling.top_n_sigma > 0,
    "temperature": lambda sampling: sampling.temperature != 1 or sampling.dynatemp_range > 0,
    "top_k": lambda sampling: sampling.top_k > 0,
    "typical_p": lambda sampling: sampling.typical_p < 1,
    "top_p": lambda sampling: sampling.top_p < 1,
    "min_p": lambda sampling: sampling.min_p > 0,
    "xtc": lambda sampling: sampling.xtc_probability > 0 and sampling.xtc_threshold <= 0.5,
}


def acting_filters(sampling: SamplingParams) -> tuple[str, ...]:
    """Return the filters that change anything, in their order."""
    order = FILTERS if sampling.samplers is None else sampling.samplers
    return tuple(name for name in order if _ACTIVE[name](sampling))


_USUAL = ("temperature", "top_k", "top_p", "min_p")


def _has_only_usual(sampling: SamplingParams) -> bool:
    """Return whether no field asks for another filter or order; quick, because every token needs it."""
    others = sampling.top_n_sigma or sampling.dynatemp_range or sampling.xtc_probability or sampling.min_keep > 1
    return not others and sampling.samplers is None and sampling.typical_p >= 1


def chain_of(sampling: SamplingParams) -> tuple[str, ...] | None:
    """Return the filters that act, in order; None if `sampler` draws with the usual ones in their usual order."""
    if _has_only_usual(sampling):
        return None
    acting = acting_filters(sampling)
    usual = acting == tuple(name for name in _USUAL if _ACTIVE[name](sampling))
    is_plain = usual and sampling.dynatemp_range == 0 and sampling.min_keep <= 1
    return None if is_plain else acting


def carries_state(sampling: SamplingParams) -> bool:
    """Return whether a draw depends on more than the counts of the tokens before it; then nothing is drafted."""
    return bool(sampling.mirostat or sampling.dry) or sampling.penalty_last_n is not None


class Candidates:
    """The tokens that can still be drawn: `ids` (None: all) ascending, with their `logits`.

    `temperature` is 1 until the temperature is applied; `counted` includes tokens that top-n-sigma removed.
    """

    def __init__(self, logits: F32, ids: Places | None) -> None:
        self.logits = logits
        self.ids = ids
        self.temperature = 1.0
        self.counted = len(logits)
        self._weights: F64 | None = None

    @property
    def weights(self) -> F64:
        """The weight of each token: (n,) float64; the best weighs 1."""
        if self._weights is None:
            self._weights = weights_of(self.logits, int(self.logits.argmax()), self.temperature)
        return self._weights

    def exponents(self) -> F64:
        """Return the logarithm of each weight: (n,) float64."""
        scaled = self.logits.astype(np.float64)
        scaled -= scaled[self.logits.argmax()]
        if self.temperature != 1.0:
            with np.errstate(over="ignore"):
                scaled /= self.temperature
        return np.maximum(scaled, fixed_math.FLOOR)

    def entropy(self) -> tuple[float, float]:
        """Return the entropy of the tokens in nats, and the logarithm of the sum of their weights."""
        total = fixed_math.total(self.weights)
        log_total = fixed_math.log(total)
        return log_total - fixed_math.total(self.weights * self.exponents()) / total, log_total

    def heat(self, temperature: float) -> None:
        """Apply the temperature; 0 keeps the best token alone."""
        if temperature == 0:
            self.keep(np.array([self.logits.argmax()]))
        else:
            self.temperature = temperature
            self._weights = None

    def keep(self, places: Places, *, with_best: bool = True) -> None:
        """Keep the tokens at `places`, ascending; `with_best`: the best is among them, so that no weight changes."""
        self.logits = self.logits[places]
        self.ids = places if self.ids is None else self.ids[places]
        self._weights = self._weights[places] if with_best and self._weights is not None else None
        self.counted = len(places)

    def keep_best(self, count: int) -> None:
        """Keep the `count` best."""
        if count < len(self.logits):
            self.keep(np.sort(best_ids(self.logits, count)))

    def draw(self, u: float) -> int:
        """Return the place that contains the share u of the weights."""
        return fixed_math.inverse_cdf(self.weights, u)

    def token(self, place: int) -> int:
        """Return the id at a place."""
        return place if self.ids is None else int(self.ids[place])


def open_field(logits: F32, allowed: Places | None) -> Candidates:
    """Return the tokens that can be drawn at first: the allowed ones, without those whose logit is minus infinity."""
    field = Candidates(logits if allowed is None else logits[allowed], allowed)
    numbers = np.flatnonzero(field.logits > -np.inf)
    if len(numbers) < len(field.logits):
        field.keep(numbers)
    return field


def filtered(
    logits: F32, allowed: Places | None, sampling: SamplingParams, chain: tuple[str, ...], chance: float
) -> Candidates:
    """Return what the filters of `chain` leave of logits: (vocabulary_size,) float32; `chance` is the random number of XTC."""
    field = open_field(logits, allowed)
    for name in chain:
        _APPLY[name](field, sampling, chance)
    return field


def draw_chain(
    logits: F32, allowed: Places | None, sampling: SamplingParams, chain: tuple[str, ...], numbers: tuple[float, float]
) -> int:
    """Draw a token; logits: (vocabulary_size,) float32. `numbers` are the random ones of the draw and of XTC."""
    field = filtered(logits, allowed, sampling, chain, numbers[1])
    return field.token(field.draw(numbers[0]))


# --- filters -----------------------------------------------------------------------------------------------------------------


def _top_n_sigma(field: Candidates, sampling: SamplingParams, _chance: float) -> None:
    """Keep what is at most so many standard deviations below the best."""
    logits, counted = field.logits.astype(np.float64), field.counted
    away = logits - fixed_math.total(logits) / len(logits)
    deviation = float(np.sqrt(fixed_math.total(away * away) / len(logits)))
    field.keep(np.flatnonzero(logits >= float(logits.max()) - sampling.top_n_sigma * deviation))
    field.counted = counted


def _temperature(field: Candidates, sampling: SamplingParams, _chance: float) -> None:
    """Apply the temperature, or the one in its range that the entropy gives."""
    spread = sampling.dynatemp_range
    if spread <= 0:
        field.heat(sampling.temperature)
    elif field.counted > 1:
        low, high = max(0.0, sampling.temperature - spread), sampling.temperature + spread
        share = field.entropy()[0] / fixed_math.log(float(field.counted))
        field.heat(low + (high - low) * fixed_math.power(share, sampling.dynatemp_exponent))


def _top_k(field: Candidates, sampling: SamplingParams, _chance: float) -> None:
    counted = min(field.counted, sampling.top_k)
    field.keep_best(sampling.top_k)
    field.counted = counted


def _typical_p(field: Candidates, sampling: SamplingParams, _chance: float) -> None:
    """Keep the tokens whose surprise is nearest to the entropy, until their share is above `typical_p`; a lower id wins a tie."""
    entropy, log_total = field.entropy()
    distance = np.abs((log_total - field.exponents()) - entropy).astype(np.float32)
    order = np.argsort(distance, kind="stable")
    shares = fixed_math.shares(field.weights)
    enough = int(sampling.typical_p * float(shares.sum()))
    reached = int(np.searchsorted(np.add.accumulate(shares[order]), enough, side="right")) + 1
    field.keep(np.sort(order[: max(reached, sampling.min_keep)]), with_best=False)


def _top_p(field: Candidates, sampling: SamplingParams, _chance: float) -> None:
    places = nucleus(field.logits, field.weights, sampling.top_p)
    if len(places) < sampling.min_keep:
        field.keep_best(sampling.min_keep)
    else:
        field.keep(places)
    field.counted = len(field.logits)


def _min_p(field: Candidates, sampling: SamplingParams, _chance: float) -> None:
    places = np.flatnonzero(field.weights >= sampling.min_p)
    if len(places) < sampling.min_keep:
        field.keep_best(sampling.min_keep)
    else:
        field.keep(places)
    field.counted = len(field.logits)


def _xtc(field: Candidates, sampling: SamplingParams, chance: float) -> None:
    """Remove the tokens of at least the threshold, all but the least of them, if the chance is within the probability."""
    if chance > sampling.xtc_probability:
        return
    weights = field.weights
    heavy = int(np.count_nonzero(weights >= sampling.xtc_threshold * fixed_math.total(weights)))
    counted = field.counted - (heavy - 1)
    if heavy < 2 or counted < sampling.min_keep:
        return
    kept = np.ones(len(weights), bool)
    kept[best_ids(field.logits, heavy - 1)] = False
    field.keep(np.flatnonzero(kept), with_best=False)
    field.counted = counted


_APPLY: Mapping[str, Callable[[Candidates, SamplingParams, float], None]] = {
    "top_n_sigma": _top_n_sigma,
    "temperature": _temperature,
    "top_k": _top_k,
    "typical_p": _typical_p,
    "top_p": _top_p,
    "min_p": _min_p,
    "xtc": _xtc,
}


# --- mirostat ----------------------------------------------------------------------------------------------------------------


def first_mu(sampling: SamplingParams) -> float:
    """Return mu before the first token of an answer."""
    return 2 * sampling.mirostat_tau


def within_mu(logits: F32, allowed: Places | None, sampling: SamplingParams, mu: float) -> Candidates:
    """Return the tokens whose surprise is within mu: (vocabulary_size,) float32 logits."""
    field = open_field(logits, allowed)
    field.heat(sampling.temperature)
    if sampling.mirostat == 1:
        field.keep_best(_zipf_count(field, mu, len(logits)))
        return field
    bound = fixed_math.total(field.weights) * fixed_math.exp(-mu * fixed_math.LN2)
    kept = np.flatnonzero(field.weights >= bound)
    field.keep(kept if len(kept) else np.array([field.logits.argmax()]))
    return field


def draw_mirostat(
    logits: F32, allowed: Places | None, sampling: SamplingParams, mu: float, u: float
) -> tuple[int, float]:
    """Draw a token, and return it with mu for the next one; logits: (vocabulary_size,) float32."""
    field = within_mu(logits, allowed, sampling, mu)
    place = field.draw(u)
    return field.token(place), mu_after(field, place, sampling, mu)


def mu_after(field: Candidates, place: int, sampling: SamplingParams, mu: float) -> float:
    """Return mu after the token at `place`, from its surprise among the tokens of the field."""
    total = fixed_math.total(field.weights)
    surprise = (fixed_math.log(total) - fixed_math.log(float(field.weights[place]))) / fixed_math.LN2
    return mu - sampling.mirostat_eta * (surprise - sampling.mirostat_tau)


def _zipf_count(field: Candidates, mu: float, vocabulary_size: int) -> int:
    """Return how many tokens mirostat 1 keeps: those of surprise up to mu, if the weights follow Zipf's law."""
    head = best_ids(field.logits, min(_HEAD, len(field.logits)))
    exponents = field.exponents()[head].tolist()
    products = squares = 0.0
    for i in range(len(head) - 1):
        step = fixed_math.log((i + 2.0) / (i + 1.0))
        products += step * (exponents[i] - exponents[i + 1])
        squares += step * step
    slope = products / squares if squares else 0.0
    return _count_below(slope, mu, float(vocabulary_size)) if slope > 0 else len(field.logits)


def _count_below(slope: float, mu: float, size: float) -> int:
    """Return k = (e 2^mu / (1 - size^-e))^(1 / slope), at least 1, for e = slope - 1."""
    excess, log_size = slope - 1, fixed_math.log(size)
    divisor = 1 - fixed_math.exp(-excess * log_size)
    ratio = excess / divisor if divisor else 1 / log_size
    return max(1, int(fixed_math.exp(min((fixed_math.log(ratio) + mu * fixed_math.LN2) / slope, _MOST_LOG))))
