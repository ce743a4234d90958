"""The order of tokens by their logits, and their weights: what all filters are made of.

Owns the rule for ties (the lower id is the better one) and the nucleus. Knows nothing of requests.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tlserve.engine.sampling import fixed_math

_COLUMN = 64  # logits that share one maximum in the search for the best


def best_ids(logits: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    """Return the ids of the `count` largest of logits: (n,) float32, the largest first, the lower id first among equals."""
    columns = len(logits) // _COLUMN
    tops = logits[: columns * _COLUMN].reshape(_COLUMN, columns).max(axis=0) if count <= columns else logits
    bound = np.partition(tops, len(tops) - count)[len(tops) - count] if count < len(tops) else tops.min()
    candidates = np.flatnonzero(logits >= bound)  # the count-th largest maximum is at most the count-th largest logit
    return candidates[np.argsort(-logits[candidates], kind="stable")[:count]]


def weights_of(logits: NDArray[np.float32], best: int, temperature: float) -> NDArray[np.float64]:
    """Return exp((logit - best logit) / temperature): (n,) float64; the best weighs exactly 1."""
    scaled = logits.astype(np.float64)
    scaled -= scaled[best]
    if temperature != 1.0:
        with np.errstate(over="ignore"):  # with a tiny temperature all but the best become minus infinity
            scaled /= temperature
    fixed_math.exp_in_place(scaled)
    return scaled


def nucleus(logits: NDArray[np.float32], weights: NDArray[np.float64], top_p: float) -> NDArray[np.intp]:
    """Return the places, ascending, of the smallest set of best weights that reaches the share `top_p`; at least one."""
    shares = fixed_math.shares(weights)
    enough = int(top_p * float(shares.sum()))
    count = min(256, len(logits))
    while True:  # a few of the best are almost always enough, and much cheaper than sorting all
        order = best_ids(logits, count)
        reached = int(np.searchsorted(np.add.accumulate(shares[order]), enough, side="left")) + 1
        if reached <= count or count == len(logits):
            return np.sort(order[:reached])
        count = min(8 * count, len(logits))
