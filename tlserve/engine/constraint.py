"""The two calls into a request's constraint, and what becomes of one that breaks.

Owns the unpacking of the bit mask. Refuses to know grammars. Constraints are code from another room that runs inside a step:
whatever one raises ends its own request, never the engine.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tlserve.errors import ServerFault
from tlserve.generation import TokenConstraint


class ConstraintFailed(ServerFault):
    """The constraint raised, or allows no token at all."""

    def __init__(self, message: str = "the constraint allows no token") -> None:
        super().__init__(message)


def mask_of(constraint: TokenConstraint) -> NDArray[np.uint32]:
    """Return the words of what may come next; raises ConstraintFailed."""
    try:
        return np.ascontiguousarray(constraint.mask(), dtype="<u4")
    except Exception as error:
        raise ConstraintFailed("the constraint failed to say what may come next") from error


def allowed_ids(mask: NDArray[np.uint32], vocabulary_size: int) -> NDArray[np.intp]:
    """Return the ids that `mask` allows, ascending, at least one; raises ConstraintFailed."""
    allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:vocabulary_size])
    if not len(allowed):
        raise ConstraintFailed
    return allowed


def advance(constraint: TokenConstraint | None, token: int) -> None:
    """Tell the constraint, if there is one, that `token` came; raises ConstraintFailed."""
    try:
        if constraint is not None:
            constraint.accept(token)
    except Exception as error:
        raise ConstraintFailed("the constraint failed to take a token") from error
