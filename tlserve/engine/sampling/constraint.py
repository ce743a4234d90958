"""The masks of a request's constraint and of its shortest length, row by row, and the error of a constraint that fails.

Owns the bit masks. Knows nothing of grammars. Constraints are code from another package that runs inside a step: an error
of one ends its own request, never the engine.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from tlserve.errors import GrammarLimitExceeded, ServerFault
from tlserve.generation import TokenConstraint

log = logging.getLogger("tlserve.engine")

Mask = NDArray[np.uint32]


class ConstraintFailed(ServerFault):
    """The constraint raised, or allows no token at all."""

    def __init__(self, message: str = "the constraint allows no token") -> None:
        super().__init__(message)


def mask_of(constraint: TokenConstraint) -> Mask:
    """Return the mask of the tokens that may come next; raises ConstraintFailed or GrammarLimitExceeded."""
    with _named("allowed no token"):
        return np.ascontiguousarray(constraint.mask(), dtype="<u4")


def advance(constraint: TokenConstraint | None, token: int) -> None:
    """Advance the constraint, if there is one, over `token`; raises as `mask_of`."""
    if constraint is not None:
        with _named("did not take a token"):
            constraint.accept(token)


def take_back(constraint: TokenConstraint | None, count: int) -> None:
    """Move the constraint, if there is one, back by `count` tokens; raises as `mask_of`."""
    if constraint is not None and count:
        with _named("did not take tokens back"):
            constraint.rollback(count)


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Turn any other error of a constraint into ConstraintFailed, and log it."""
    try:
        yield
    except GrammarLimitExceeded:
        raise
    except Exception as error:
        log.warning("a constraint failed: it %s: %s", what, error)
        raise ConstraintFailed(f"the constraint failed: it {what}") from error


# --- masks ---------------------------------------------------------------------------------------------------------------


def all_but(banned: Iterable[int], vocabulary_size: int) -> Mask | None:
    """Return the mask of every id that is not `banned`; None if that would leave no id, or all of them."""
    kept = np.zeros(-(-vocabulary_size // 32) * 32, np.uint8)
    kept[:vocabulary_size] = 1
    known = [token for token in banned if 0 <= token < vocabulary_size]
    kept[known] = 0
    return np.packbits(kept, bitorder="little").view("<u4") if known and kept.any() else None


class TokenBound:
    """The ids that a request allows by itself: `allowed_ids`, without those that would complete a banned run of tokens."""

    def __init__(self, allowed: Sequence[int], banned: Sequence[Sequence[int]], vocabulary_size: int) -> None:
        self._vocabulary_size = vocabulary_size
        self._always = narrowed(
            mask_with(allowed, vocabulary_size) if allowed else None,
            all_but([run[0] for run in banned if len(run) == 1], vocabulary_size),
        )
        self._runs: dict[int, list[tuple[int, ...]]] = {}
        for run in banned:
            if len(run) > 1:
                self._runs.setdefault(run[-2], []).append(tuple(run))

    def mask(self, answer: Sequence[int]) -> Mask | None:
        """Return the ids that can follow the tokens of the answer; None: all."""
        runs = self._runs.get(answer[-1], ()) if answer else ()
        ends = [run[-1] for run in runs if tuple(answer[1 - len(run) :]) == run[:-1]]
        return narrowed(self._always, all_but(ends, self._vocabulary_size)) if ends else self._always


def open_bound(allowed: Sequence[int], banned: Sequence[Sequence[int]], vocabulary_size: int) -> TokenBound | None:
    """Return the bound of a request; None if it has none."""
    return TokenBound(allowed, banned, vocabulary_size) if allowed or banned else None


def mask_with(allowed: Iterable[int], vocabulary_size: int) -> Mask:
    """Return the mask of the ids of `allowed` that are in the vocabulary."""
    kept = np.zeros(-(-vocabulary_size // 32) * 32, np.uint8)
    kept[[token for token in allowed if 0 <= token < vocabulary_size]] = 1
    return np.packbits(kept, bitorder="little").view("<u4")


def narrowed(mask: Mask | None, bound: Mask | None) -> Mask | None:
    """Return the ids that both allow; None allows all. If none is left, return `mask` without the bound."""
    if mask is None or bound is None:
        return bound if mask is None else mask
    words = min(len(mask), len(bound))
    both = mask[:words] & bound[:words]
    return both if both.any() else mask


def allows(mask: Mask | None, token: int) -> bool:
    """Return whether `mask` has the bit of `token`."""
    return mask is None or (token // 32 < len(mask) and bool(mask[token // 32] >> np.uint32(token % 32) & np.uint32(1)))


def allowed_ids(mask: Mask, vocabulary_size: int) -> NDArray[np.intp]:
    """Return the ids that `mask` allows, ascending; raises ConstraintFailed if there are none."""
    allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:vocabulary_size])
    if not len(allowed):
        raise ConstraintFailed
    return allowed
