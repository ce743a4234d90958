"""How tokens are drawn, as data that every layer shares.

Owns the parameters and their neutral values. Does not know how a token is drawn (`tlserve.engine.sampling`) and by which names
clients send the parameters.

Source of the samplers that are not usual elsewhere: `src/llama-sampler.cpp` of llama.cpp, whose meaning they have.
"""

from __future__ import annotations

import attrs

FILTERS = ("top_n_sigma", "temperature", "top_k", "typical_p", "top_p", "min_p", "xtc")
"""What turns logits into the tokens that can be drawn, in the order in which it is done unless a request has its own order."""

MOST_BREAKERS = 64
MOST_TAIL = 20
"""The most breakers of a request, and the longest tail of one: each costs time with every token."""


@attrs.frozen(kw_only=True)
class Breaker:
    """Where a repetition ends: a token of `heads`, a bit mask as of a `TokenConstraint` in bytes, and then the tokens `tail`."""

    heads: bytes
    tail: tuple[int, ...] = ()


@attrs.frozen(kw_only=True)
class Dry:
    """Do not repeat yourself: a token that would continue a repetition of n tokens loses logit, for n from `allowed_length` on.

    It loses `multiplier` times `base` to the power of n - `allowed_length`. Only the `last_n` latest tokens of prompt and answer
    are searched, None: all of them, and none before the latest of `breakers`. A token that is a breaker by itself loses nothing.
    """

    multiplier: float
    base: float = 1.75
    allowed_length: int = 2
    last_n: int | None = None
    breakers: tuple[Breaker, ...] = ()


@attrs.frozen(kw_only=True)
class SamplingParams:
    """How one token is drawn from the logits; applied in the order of the fields, in float64 (an edited logit is rounded once).

    `repetition_penalty` divides the positive logits of the tokens that are in prompt or answer, and multiplies the negative
    ones; 1 is off. `presence_penalty` is taken from the logit of each token that is in the answer, `frequency_penalty` once
    for each time it is there. With `penalty_last_n` all three look at that many latest tokens of prompt and answer instead.
    `logit_bias` is added: pairs of an id and a number, an id at most once. The mask of the grammar comes next.

    `top_n_sigma` keeps the logits that are at most so many standard deviations below the best; 0 is off. `temperature` 0 is
    greedy (the lowest id wins a tie). With `dynatemp_range` it is from `temperature` - range to `temperature` + range: more where
    the entropy is larger, as a share of the greatest possible one, to the power of `dynatemp_exponent`. `top_k` 0, `typical_p`
    1, `top_p` 1 and `min_p` 0 are off. With `xtc_probability`, all tokens of at least the share `xtc_threshold` except the least
    of them are removed. `min_keep`: typical-p, top-p, min-p and XTC leave at least so many tokens.

    `samplers` are the only ones of FILTERS that are applied, in this order; None: all of them in theirs. With `mirostat` 1 or 2,
    no filter is applied but the temperature: the surprise of the tokens is steered to `mirostat_tau` bits, at the rate
    `mirostat_eta`.
    """

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalty_last_n: int | None = None
    dry: Dry | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    top_n_sigma: float = 0.0
    temperature: float = 1.0
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    top_k: int = 0
    typical_p: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    min_keep: int = 0
    samplers: tuple[str, ...] | None = None
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
