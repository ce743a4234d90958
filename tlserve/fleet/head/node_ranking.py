"""The order of nodes for a request. Pure functions over what a head knows.

Knows nothing of links and sessions. The score weighs the prompt tokens that a node has cached against its load; ties are decided
by the conversation's home, which every head computes in the same way.

Source: rendezvous hashing (Thaler and Ravishankar, 1998).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import attrs

from tlserve.fleet.head.limits import PlacementWeights
from tlserve.generation import GenerationRequest

SLOTS = 32
"""Loads are scaled to a node with this many slots."""


@attrs.frozen
class Candidate:
    """A node that could take the request: `load` in sequences, scaled to `SLOTS`; `matched_tokens` of the prompt are cached."""

    node: str
    load: float = 0.0
    matched_tokens: int = 0


def rank(candidates: Sequence[Candidate], home: bytes, weights: PlacementWeights) -> tuple[Candidate, ...]:
    """Return the candidates, best first; `home` names the conversation."""
    if not candidates:
        return ()
    least = min(candidate.load for candidate in candidates)
    first = max(candidates, key=lambda candidate: _rendezvous(home, candidate.node))

    def order(candidate: Candidate) -> tuple[float, bytes]:
        in_reach = candidate.load - least <= weights.skip_load
        bonus = weights.home_tokens if home and candidate is first else 0.0
        affinity = candidate.matched_tokens + bonus if in_reach else 0.0
        return affinity - weights.load_tokens * candidate.load, _rendezvous(home, candidate.node)

    return tuple(sorted(candidates, key=order, reverse=True))


def _rendezvous(home: bytes, node: str) -> bytes:
    return hashlib.blake2b(node.encode(), key=home, digest_size=8).digest()


def needs_of(request: GenerationRequest) -> frozenset[str]:
    """Return the features that `request` uses, by the names under which a node refuses them; no-op values use none."""
    sampling = request.sampling
    used = {
        "penalties": (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty) != (1, 0, 0),
        "logit_bias": bool(sampling.logit_bias),
        "min_tokens": request.min_tokens > 0,
        "logprobs": request.logprobs is not None,
        "prompt_logprobs": request.prompt_logprobs is not None,
        "grammar": request.grammar is not None,
    }
    return frozenset(name for name, is_used in used.items() if is_used)
