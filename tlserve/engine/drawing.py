"""The draws of one step: every row that can be drawn at once in one call of the sampler, the others when their turn comes.

Owns the way from planned rows to runs of a sampler. Refuses to know what becomes of a token. A row after a draft can be drawn
beside the row before it, unless a constraint must see the token in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from tlserve.engine.constraint import ConstraintFailed, mask_of
from tlserve.engine.draws import Draw, Drawn, Run, Sampler
from tlserve.engine.step_plan import SequenceRows
from tlserve.errors import ServerFault

F32 = NDArray[np.float32]


def open_draws(sampler: Sampler, items: Sequence[SequenceRows], logits: F32) -> list[Iterator[Draw]]:
    """Return the draws of each item, which has rows of logits: (rows of all items, vocabulary_size) float32.

    Take a draw, move the sequence on, and ask for the next only where the draft was right. Where a row gives no token its
    iterator raises the ServerFault.
    """
    runs = [_first_run(item) for item in items]
    drawn = sampler.draw(logits, [run for run, _ in runs]) if runs else []
    places = accumulate((item.sampled for item in items), initial=0)
    return [
        _draws(sampler, item, Drawn((), fault) if fault else first, logits, place)
        for item, (_, fault), first, place in zip(items, runs, drawn, places, strict=False)
    ]


def _first_run(item: SequenceRows) -> tuple[Run, ServerFault | None]:
    """Return what can be drawn at once; a constraint that breaks is its own item's fault, whose rows are passed over."""
    request, index = item.request, item.sequence.emitted
    constraint = item.sequence.constraint
    if constraint is None:
        return Run(request, index, item.sampled, item.drafts), None
    try:
        return Run(request, index, item.sampled, mask=mask_of(constraint)), None
    except ConstraintFailed as fault:
        return Run(request, index, item.sampled), fault


def _draws(sampler: Sampler, item: SequenceRows, first: Drawn, logits: F32, place: int) -> Iterator[Draw]:
    yield from _checked(first)
    request, constraint = item.request, item.sequence.constraint
    if constraint is None:
        return
    for row in range(place + 1, place + item.sampled):
        run = Run(request, item.sequence.emitted, mask=mask_of(constraint))
        yield from _checked(sampler.draw(logits[row : row + 1], [run])[0])


def _checked(drawn: Drawn) -> Iterator[Draw]:
    yield from drawn.draws
    if drawn.fault is not None:
        raise drawn.fault
