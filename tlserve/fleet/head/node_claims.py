"""The checks of what a node says, before a head believes it.

Owns the rules for a single event, a description, the figures and the vectors of a node: ids are in the vocabulary, numbers are
finite, and counts fit the request. `transcript` checks the order of events. Knows nothing of sessions and links. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.fleet.link import NodeInfo, NodeLost
from tlserve.generation import (
    Distribution,
    EmbeddingRequest,
    EngineStatistics,
    Finish,
    GenerationEvent,
    GenerationRequest,
    PrefillStarted,
    Progress,
    PromptLogprobs,
    TokenEvent,
    TokenLogprob,
)


class BrokenAnswer(Exception):
    """A node sent an event that cannot follow the earlier ones, or cannot be true: the fault is the node's."""


# --- events


def check_event(event: GenerationEvent, request: GenerationRequest, emitted: int, vocabulary_size: int) -> None:
    """Raise `BrokenAnswer` if no engine with this vocabulary can give `event` for `request` after `emitted` tokens."""
    match event:
        case TokenEvent():
            _check_drawn(event.token, event.logprob, event.top, request.logprobs, vocabulary_size)
            _check_mu(event.mu, request)
        case PromptLogprobs():
            _check_prompt_logprobs(event, request, vocabulary_size)
        case PrefillStarted():
            _check_count("cached", event.cached_tokens, len(request.prompt) + emitted)
        case Progress():
            _check_count("computed", event.done, len(request.prompt) + emitted)
            if event.ahead is not None and event.ahead < 0:
                raise BrokenAnswer(f"{event.ahead} requests wait before it")


def _check_drawn(
    token: int, logprob: float | None, top: Sequence[TokenLogprob], asked: int | None, vocabulary_size: int
) -> None:
    """Check a token and its log-probabilities; `asked` is the number of best ones, None: no log-probabilities."""
    for known in (token, *(best.token for best in top)):
        if not 0 <= known < vocabulary_size:
            raise BrokenAnswer(f"token id {known} is not in the vocabulary of {vocabulary_size}")
    if (logprob is None) != (asked is None) or len(top) != min(asked or 0, vocabulary_size):
        raise BrokenAnswer(f"{len(top)} log-probabilities came instead of {asked or 0}")
    for value in (0.0 if logprob is None else logprob, *(best.logprob for best in top)):
        if not isfinite(value):
            raise BrokenAnswer(f"a log-probability is {value}")


def _check_mu(mu: float | None, request: GenerationRequest) -> None:
    if (mu is None) == bool(request.sampling.mirostat) or not isfinite(mu or 0.0):
        raise BrokenAnswer(f"mirostat's mu is {mu}")


def check_finish(event: TokenEvent, request: GenerationRequest) -> None:
    """Raise `BrokenAnswer` unless the answer ends with its last token and with no other."""
    ends_at = Finish.LENGTH if event.index + 1 >= request.max_tokens else None
    expected = Finish.STOP if event.token in request.stop_ids else ends_at
    if event.finish is not expected:
        raise BrokenAnswer(f"token {event.index} has the finish {event.finish} instead of {expected}")


def _check_prompt_logprobs(event: PromptLogprobs, request: GenerationRequest, vocabulary_size: int) -> None:
    tokens = tuple(each.token for each in event.tokens)
    if request.prompt_logprobs is None or event.start < 1:
        raise BrokenAnswer(f"log-probabilities of the prompt came from token {event.start} on")
    if tokens != request.prompt[event.start : event.start + len(tokens)]:
        raise BrokenAnswer("the tokens of the prompt are not those of the request")
    for each in event.tokens:
        _check_drawn(each.token, each.logprob, each.top, request.prompt_logprobs, vocabulary_size)


def _check_count(what: str, count: int, known: int) -> None:
    if not 0 <= count <= known:
        raise BrokenAnswer(f"{count} of {known} tokens are {what}")


# --- descriptions, figures, vectors


def check_info(info: NodeInfo) -> None:
    """Raise `NodeLost` for a description that no node can have."""
    backend = info.backend
    least = {
        "slots": (info.slots, 1),
        "context_tokens": (backend.context_tokens, 1),
        "vocabulary_size": (backend.vocabulary_size, 1),
        "embedding_size": (backend.embedding_size, 0),
        "admission_limit": (1 if backend.admission_limit is None else backend.admission_limit, 1),
    }
    for name, (value, low) in least.items():
        if value < low:
            raise NodeLost(f"it describes itself with {name} = {value}")


def check_figures(statistics: EngineStatistics) -> None:
    """Raise `NodeLost` for figures that cannot be added to those of other nodes."""
    for field in attrs.fields(EngineStatistics):
        value = getattr(statistics, field.name)
        sound = _is_sound(value) if isinstance(value, Distribution) else isfinite(value) and value >= 0
        if not sound:
            raise NodeLost(f"its figure {field.name} is {value}")


def _is_sound(values: Distribution) -> bool:
    numbers = (*values.counts, *values.bounds, values.total)
    return len(values.counts) == len(values.bounds) + 1 and all(isfinite(n) and n >= 0 for n in numbers)


def check_vectors(vectors: Sequence[NDArray[np.float32]], request: EmbeddingRequest, size: int) -> None:
    """Raise `NodeLost` unless there is one vector of `size` finite numbers for each input."""
    if len(vectors) != len(request.inputs):
        raise NodeLost(f"{len(vectors)} vectors came for {len(request.inputs)} inputs")
    for vector in vectors:
        if vector.shape != (size,) or not np.isfinite(vector).all():
            raise NodeLost(f"a vector has not {size} finite numbers")
