"""How a model's next-token distributions differ from those of the same model in f32.

Owns the figures: the mean Kullback-Leibler divergence, the share of positions with the same first choice, and the perplexity.
Knows models and tokens, no settings and no text. All sums over a vocabulary are in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.interface import Model, StepBatch

F64 = NDArray[np.float64]

PIECE_TOKENS = 512
_STEP_VALUES = 1 << 22  # logits of one step at most, to bound the memory
_BLOCK_SIZE = 16


@attrs.frozen(kw_only=True)
class Comparison:
    """One model beside the same in f32, over all positions of the pieces.

    `kl`: mean divergence of its next-token distribution from that of f32, in nats; `kl_p99`: the hundredth part of the positions
    has more. `agreement`: share of positions whose most probable token is the same. `perplexity`: of the text.
    """

    positions: int
    kl: float
    kl_p99: float
    agreement: float
    perplexity: float


@attrs.frozen
class _Scores:
    """Of each position: the divergence from f32, whether the first choice agrees, the loss of the next token if one follows."""

    kl: F64
    agrees: NDArray[np.bool_]
    losses: F64


def pieces_of(tokens: Sequence[int], context_tokens: int) -> tuple[tuple[int, ...], ...]:
    """Cut tokens into pieces that are computed alone, each of at most 512 tokens or the model's context."""
    size = min(PIECE_TOKENS, context_tokens)
    return tuple(tuple(tokens[first : first + size]) for first in range(0, len(tokens), size))


def compare(truth: Model, models: Sequence[Model], pieces: Sequence[Sequence[int]]) -> list[Comparison]:
    """Return a comparison of `truth` with itself, and of each of `models` with it."""
    every = (truth, *models)
    scores: list[list[_Scores]] = [[] for _ in every]
    for piece in pieces:
        for rows in zip(*(_log_probabilities(model, piece) for model in every), strict=True):
            for found, (first, own) in zip(scores, rows, strict=True):
                found.append(_score(rows[0][1], own, piece[first + 1 : first + 1 + len(own)]))
    return [_summary(found) for found in scores]


def _log_probabilities(model: Model, piece: Sequence[int]) -> Iterator[tuple[int, F64]]:
    """Yield the logarithms of the next-token probabilities of some positions at a time, with the first of these positions."""
    blocks = -(-len(piece) // _BLOCK_SIZE)
    kv = model.new_kv_store(blocks, _BLOCK_SIZE)
    size = max(1, _STEP_VALUES // model.spec.vocabulary_size)
    for first in range(0, len(piece), size):
        logits = model.forward(_step(piece[first : first + size], first, blocks), kv).logits.astype(np.float64)
        logits -= logits.max(axis=1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        yield first, logits


def _step(tokens: Sequence[int], first: int, blocks: int) -> StepBatch:
    rows = np.arange(len(tokens), dtype=np.int32)
    return StepBatch(
        tokens=np.array(tokens, np.int32),
        positions=rows + np.int32(first),
        row_starts=np.array([0, len(tokens)], np.int32),
        block_tables=(np.arange(blocks, dtype=np.int32),),
        logit_rows=rows,
        hidden_rows=np.empty(0, np.int32),
    )


def _score(truth: F64, own: F64, following: Sequence[int]) -> _Scores:
    """Score some positions. truth, own: (R, vocabulary); following: the next tokens, one less at the end of a piece."""
    kl = (np.exp(truth) * (truth - own)).sum(axis=1)
    agrees = truth.argmax(axis=1) == own.argmax(axis=1)
    return _Scores(np.maximum(kl, 0), agrees, -own[np.arange(len(following)), list(following)])


def _summary(scores: Sequence[_Scores]) -> Comparison:
    def joined(part: Callable[[_Scores], NDArray[np.generic]]) -> F64:
        return np.concatenate([part(score) for score in scores]).astype(np.float64)

    kl, losses = joined(lambda score: score.kl), joined(lambda score: score.losses)
    return Comparison(
        positions=len(kl),
        kl=float(kl.mean()),
        kl_p99=float(np.quantile(kl, 0.99)),
        agreement=float(joined(lambda score: score.agrees).mean()),
        perplexity=float(np.exp(losses.mean())) if len(losses) else float("nan"),
    )
