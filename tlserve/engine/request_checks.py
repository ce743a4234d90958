"""The checks of a request before the engine queues it: each error is the client's fault and names its field.

Owns the bounds that a step relies on. Does not know how busy the engine is. The endpoints check more, in the words of their
API; these checks hold for every caller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tlserve.errors import ClientError, ContextLengthExceeded
from tlserve.generation import GenerationRequest, SamplingParams


def check_request(request: GenerationRequest, vocabulary_size: int, context_tokens: int) -> None:
    """Raise ClientError, or ContextLengthExceeded, for a request that cannot be continued."""
    check_tokens((*request.prompt, *request.emitted), vocabulary_size, context_tokens, room_for=1)
    if len(request.emitted) >= request.max_tokens or request.stop_ids.intersection(request.emitted):
        raise ClientError("there is nothing left to generate: the answer has ended", param="max_tokens")
    _check_sampling(request.sampling, vocabulary_size)


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


def _check_sampling(sampling: SamplingParams, vocabulary_size: int) -> None:
    for name in ("temperature", "repetition_penalty", "presence_penalty", "frequency_penalty", "top_p", "min_p"):
        if not math.isfinite(getattr(sampling, name)):
            raise ClientError(f"{name} must be a finite number", param=name)
    if sampling.temperature < 0:
        raise ClientError("temperature must not be below 0", param="temperature")
    if sampling.repetition_penalty <= 0:
        raise ClientError("repetition_penalty must be above 0", param="repetition_penalty")
    ids = [token for token, _ in sampling.logit_bias]
    _check_ids(ids, vocabulary_size, "logit_bias")
    if len(set(ids)) < len(ids) or not all(math.isfinite(bias) for _, bias in sampling.logit_bias):
        raise ClientError("logit_bias must have each id once, with a finite number", param="logit_bias")
