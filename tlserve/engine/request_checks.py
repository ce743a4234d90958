"""The checks of a request before the engine queues it: each error is the client's fault and names its field.

Owns the bounds that a step relies on. Does not know how busy the engine is. The endpoints check more, in the words of their
API; these checks hold for every caller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tlserve.engine.sequence import MOST_BANNED_TOKENS
from tlserve.errors import ClientError, ContextLengthExceeded
from tlserve.generation import GenerationRequest
from tlserve.sampling_params import FILTERS, MOST_BREAKERS, MOST_TAIL, Dry, SamplingParams


def check_request(request: GenerationRequest, vocabulary_size: int, context_tokens: int) -> None:
    """Raise ClientError, or ContextLengthExceeded, for a request that cannot be continued."""
    check_tokens((*request.prompt, *request.emitted), vocabulary_size, context_tokens, room_for=1)
    if len(request.emitted) >= request.max_tokens or request.stop_ids.intersection(request.emitted):
        raise ClientError("there is nothing left to generate: the answer has ended", param="max_tokens")
    _check_sampling(request.sampling, vocabulary_size)
    _check_bound(request, vocabulary_size)


def check_tokens(tokens: Sequence[int], vocabulary_size: int, context_tokens: int, *, room_for: int) -> None:
    """Raise ClientError for no tokens or an unknown one, ContextLengthExceeded if `room_for` more tokens do not fit."""
    if not tokens:
        raise ClientError("the prompt is empty", param="prompt")
    if len(tokens) + room_for > context_tokens:
        raise ContextLengthExceeded.of_prompt(f"it has {len(tokens)} tokens", context_tokens)
    _check_ids(tokens, vocabulary_size, "prompt")


def _check_ids(ids: Sequence[int], vocabulary_size: int, param: str) -> None:
    if ids and (min(ids) < 0 or max(ids) >= vocabulary_size):
        raise ClientError(f"token ids go from 0 to {vocabulary_size - 1}", param=param)


def _check_bound(request: GenerationRequest, vocabulary_size: int) -> None:
    _check_ids(request.allowed_ids, vocabulary_size, "allowed_token_ids")
    _check_ids([token for run in request.banned for token in run], vocabulary_size, "bad_words")
    if any(not 0 < len(run) <= MOST_BANNED_TOKENS for run in request.banned):
        raise ClientError(f"each of bad_words must have 1 to {MOST_BANNED_TOKENS} tokens", param="bad_words")
    if request.mu is not None and not math.isfinite(request.mu):
        raise ClientError("mu must be a finite number", param="mu")


_BOUNDS: Mapping[str, tuple[float, float]] = {
    "temperature": (0, math.inf),
    "repetition_penalty": (5e-324, math.inf),
    "presence_penalty": (-math.inf, math.inf),
    "frequency_penalty": (-math.inf, math.inf),
    "top_n_sigma": (0, math.inf),
    "dynatemp_range": (0, 1e6),
    "dynatemp_exponent": (0, 1e6),
    "typical_p": (5e-324, 1),
    "top_p": (5e-324, math.inf),
    "min_p": (0, 1),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 1),
    "mirostat": (0, 2),
    "mirostat_tau": (0, 1e6),
    "mirostat_eta": (0, 1e3),
    "top_k": (0, math.inf),
    "min_keep": (0, 2**31),
}


def _check_sampling(sampling: SamplingParams, vocabulary_size: int) -> None:
    for name, (low, high) in _BOUNDS.items():
        value = getattr(sampling, name)
        if not math.isfinite(value) or not low <= value <= high:
            raise ClientError(f"{name} is {value}; send a finite number in its range", param=name)
    if sampling.samplers is not None and set(sampling.samplers) - set(FILTERS):
        raise ClientError(f"samplers has a name that is not one of {', '.join(FILTERS)}", param="samplers")
    if sampling.samplers is not None and len(set(sampling.samplers)) < len(sampling.samplers):
        raise ClientError("samplers has a name twice", param="samplers")
    if sampling.penalty_last_n is not None and sampling.penalty_last_n < 0:
        raise ClientError("repeat_last_n must not be below 0", param="repeat_last_n")
    if sampling.dry is not None:
        _check_dry(sampling.dry)
    ids = [token for token, _ in sampling.logit_bias]
    _check_ids(ids, vocabulary_size, "logit_bias")
    if len(set(ids)) < len(ids) or not all(math.isfinite(bias) for _, bias in sampling.logit_bias):
        raise ClientError("logit_bias must have each id once, with a finite number", param="logit_bias")


def _check_dry(dry: Dry) -> None:
    if not (math.isfinite(dry.multiplier) and math.isfinite(dry.base) and dry.multiplier >= 0 and dry.base >= 1):
        raise ClientError("dry_multiplier must be at least 0 and dry_base at least 1", param="dry_multiplier")
    if dry.allowed_length < 1 or (dry.last_n is not None and dry.last_n < 0):
        raise ClientError("dry_allowed_length must be at least 1, and no length below 0", param="dry_allowed_length")
    if len(dry.breakers) > MOST_BREAKERS or any(len(breaker.tail) > MOST_TAIL for breaker in dry.breakers):
        raise ClientError("there are too many sequence breakers", param="dry_sequence_breakers")
