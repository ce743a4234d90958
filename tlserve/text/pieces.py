"""Long texts -> pieces that can be encoded one by one, where that gives the ids of the whole.

Owns the rule for cuts, and the question whether the ids are still wanted. A cut is at a space between two ASCII letters, because
there every supported cut into words has a boundary: no pattern of `tlserve.text.kinds.pre_tokenizers` can match a letter
and a space after it, and none looks behind. Merges stay inside words. A text without such places stays whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from itertools import pairwise

PIECE_CHARACTERS = 1 << 16
"""A piece has at least this length; encoding it takes some tens of milliseconds."""

is_dropped: ContextVar[Callable[[], bool]] = ContextVar("is_dropped", default=lambda: False)
"""Says whether nobody waits for the result of the work in this context."""

_CUT = re.compile("(?<=[A-Za-z]) (?=[A-Za-z])")


class Dropped(Exception):
    """Nobody waits for the ids."""


def allows_cuts(tokens: Iterable[str], space: str = " ") -> bool:
    """Say whether no token has a letter before a space, so that none can lie across a cut. `space` is its spelling in them."""
    pairs = (pair for token in tokens for pair in pairwise(token))
    return not any(after == space and before.isascii() and before.isalpha() for before, after in pairs)


def check_wanted() -> None:
    """Raise Dropped if nobody waits for the ids."""
    if is_dropped.get()():
        raise Dropped


def pieces_of(text: str, *, keeps_space: bool = True) -> Iterator[str]:
    """Yield the pieces of `text`; each but the first begins with its space, unless the tokenizer adds that itself.

    Raises Dropped between two pieces if nobody waits for the ids.
    """
    begin = 0
    while found := _CUT.search(text, begin + PIECE_CHARACTERS):
        yield text[begin : found.start()]
        check_wanted()
        begin = found.start() if keeps_space else found.end()
    yield text[begin:]
