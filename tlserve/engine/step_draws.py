"""The draws of one step, all in one call of the sampler.

Owns the way from planned rows to runs of the sampler, and the mask of each row. Does not know what becomes of a token. The rows
of drafts are drawn in the same call as the row before them: the constraint is advanced over the drafts to get the masks there,
and then moved back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.engine.sampling.constraint import Mask, advance, allows, mask_of, narrowed, take_back
from tlserve.engine.sampling.interface import Draw, Drawn, Sampler, SamplerRun
from tlserve.engine.step_plan import SequenceRows
from tlserve.errors import ServerFault

F32 = NDArray[np.float32]


@attrs.frozen
class SequenceDraws:
    """The draws of one sequence: `scored` prompt tokens with their log-probabilities, then the `drawn` tokens.

    Take a draw, move the sequence on, and take the next only where the draft was right. Where a row gives no token the iterator
    raises the ServerFault.
    """

    scored: tuple[Drawn, ...]
    drawn: Drawn

    def prompt_tokens(self) -> Iterator[Draw]:
        """Yield the prompt tokens in order."""
        for each in self.scored:
            yield from _checked(each)

    def draws(self) -> Iterator[Draw]:
        """Yield the drawn tokens in order."""
        return _checked(self.drawn)


NO_DRAWS = SequenceDraws((), Drawn(()))


def draw_rows(sampler: Sampler, planned: Sequence[SequenceRows], logits: F32) -> list[SequenceDraws]:
    """Return the draws of each sequence; logits: (rows of all, vocabulary_size) float32, in the order of `planned`."""
    inputs = [_plan_runs(rows) for rows in planned]
    runs = [run for own_runs, _ in inputs for run in own_runs]
    drawn = iter(sampler.draw(logits, runs) if runs else ())
    return [
        _collect(rows, [next(drawn) for _ in own_runs], broken)
        for rows, (own_runs, broken) in zip(planned, inputs, strict=True)
    ]


# --- from rows to runs ---------------------------------------------------------------------------------------------------


@attrs.frozen
class _Broken:
    """A constraint failed to give the mask of `row`; that row and those after it draw nothing."""

    row: int
    fault: ServerFault


def _plan_runs(rows: SequenceRows) -> tuple[list[SamplerRun], _Broken | None]:
    prompt = rows.sequence.tokens
    scored = (
        [SamplerRun(rows.request, 0, given=prompt[position + 1]) for position in rows.scored] if rows.scored else []
    )
    if not rows.sampled:
        return scored, None
    masks, broken = _masks(rows)
    sequence = rows.sequence
    run = SamplerRun(
        rows.request, sequence.emitted, rows.sampled, rows.drafts, masks, edits=sequence.edits, mu=sequence.mu
    )
    return [*scored, run], broken


def _masks(rows: SequenceRows) -> tuple[tuple[Mask | None, ...], _Broken | None]:
    """Return the mask of each row; a row behind a draft that cannot be drawn has none, because it never counts."""
    sequence = rows.sequence
    if sequence.constraint is None and sequence.bound is None and rows.request.min_tokens <= sequence.emitted:
        return (), None
    masks, broken = _look_ahead(rows)
    return (*masks, *[None] * (rows.sampled - len(masks))), broken


def _look_ahead(rows: SequenceRows) -> tuple[list[Mask | None], _Broken | None]:
    """Return the masks of the rows while the drafts are allowed; the constraint is then where it was."""
    masks: list[Mask | None] = []
    constraint, accepted, broken = rows.sequence.constraint, 0, None
    try:
        for row, draft in enumerate((*rows.drafts, None)):
            masks.append(_mask_of_row(rows, row))
            if draft is None or draft in rows.request.stop_ids or not allows(masks[-1], draft):
                break
            advance(constraint, draft)
            accepted += 1
    except ServerFault as fault:
        broken = _Broken(len(masks), fault)
    try:
        take_back(constraint, accepted)
    except ServerFault as fault:  # its position is unknown now: not even the first row may draw
        return [], _Broken(0, fault)
    return masks, broken


def _mask_of_row(rows: SequenceRows, row: int) -> Mask | None:
    sequence = rows.sequence
    mask = None if sequence.constraint is None else mask_of(sequence.constraint)
    if sequence.bound is not None:
        mask = narrowed(mask, sequence.bound.mask(sequence.answer_tail(rows.drafts[:row])))
    return narrowed(mask, sequence.not_yet) if sequence.emitted + row < rows.request.min_tokens else mask


# --- and back ------------------------------------------------------------------------------------------------------------


def _collect(rows: SequenceRows, drawn: list[Drawn], broken: _Broken | None) -> SequenceDraws:
    last = drawn.pop() if rows.sampled else NO_DRAWS.drawn
    if broken is not None and len(last.draws) >= broken.row:
        last = Drawn(last.draws[: broken.row], broken.fault)
    return SequenceDraws(tuple(drawn), last)


def _checked(drawn: Drawn) -> Iterator[Draw]:
    yield from drawn.draws
    if drawn.fault is not None:
        raise drawn.fault
