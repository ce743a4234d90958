"""Which experts a row takes, and with which weights: the same bits as the native kernels, from comparisons and stated sums.

`native/routing.c` repeats every operation. Does not know what experts compute.
Source: Shazeer et al., "Outrageously Large Neural Networks" (2017); DeepSeek-AI, "DeepSeek-V3" (2024) for groups and the bias
that only chooses.
"""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.reference.elementwise import sigmoid, softmax

F32 = NDArray[np.float32]
Chosen = NDArray[np.int64]

_LEAST_SUM = np.float32(1e-20)


@attrs.frozen(eq=False, kw_only=True)
class Routing:
    """How rows are routed; see `model.decoder.record.ExpertRouter`. choice_bias, own_scales: (experts,), or None."""

    chosen: int
    sigmoid: bool
    groups: int
    kept_groups: int
    divided: bool
    scale: np.float32
    choice_bias: F32 | None
    own_scales: F32 | None


def route(logits: F32, how: Routing) -> tuple[Chosen, F32]:
    """Return the chosen experts of each row, ascending, and their weights: (T, experts) -> (T, chosen) each.

    Scores are compared, with a bias the sums of both; a nan is less than every number, and of equals the lower number of an
    expert, or of a group, wins. Weights are divided by the greater of 1e-20 and their sum, which is made in ascending order.
    """
    scores = sigmoid(logits) if how.sigmoid else softmax(logits)
    ranks = _without_nan(scores if how.choice_bias is None else scores + how.choice_bias)
    chosen = np.sort(_greatest(_without_other_groups(ranks, how), how.chosen), axis=-1)
    weights: F32 = np.take_along_axis(scores, chosen, axis=-1)
    if how.divided:
        weights /= np.maximum(_sum(weights), _LEAST_SUM)[:, None]
    if how.scale != 1:
        weights *= how.scale
    if how.own_scales is not None:
        weights *= how.own_scales[chosen]
    return chosen, weights


def _without_other_groups(ranks: F32, how: Routing) -> F32:
    """Return the ranks, those in groups that are not kept below every number."""
    if how.groups == 1:
        return ranks
    grouped = ranks.reshape(len(ranks), how.groups, -1)
    two = np.sort(grouped, axis=-1)[..., -2:]
    kept = np.zeros(grouped.shape[:2], bool)
    np.put_along_axis(kept, _greatest(_without_nan(two.sum(axis=-1)), how.kept_groups), values=True, axis=-1)
    return np.where(kept[..., None], grouped, -np.float32(np.inf)).reshape(ranks.shape)


def _without_nan(ranks: F32) -> F32:
    return np.where(np.isnan(ranks), -np.float32(np.inf), ranks)


def _greatest(ranks: F32, count: int) -> Chosen:
    return np.argsort(-ranks, axis=-1, kind="stable")[:, :count]


def _sum(weights: F32) -> F32:
    total = weights[:, 0].copy()
    for place in range(1, weights.shape[1]):
        total += weights[:, place]
    return total
