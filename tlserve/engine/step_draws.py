"""The draws of one step, all in one call of the sampler.

Owns the way from planned rows to runs of a sampler, and what each row may draw. Refuses to know what becomes of a token. A row
after a draft is drawn beside the row before it: a constraint is moved over the drafts to hear what it would allow there, and
moved back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.engine.sampling.constraint import ConstraintFailed, Mask, advance, allows, mask_of, narrowed, take_back
from tlserve.engine.sampling.interface import Draw, Drawn, Sampler, SamplerRun
from tlserve.engine.step_plan import SequenceRows
from tlserve.errors import ServerFault

F32 = NDArray[np.float32]


@attrs.frozen
class ItemDraws:
    """What the rows of one item gave: of `scored` prompt tokens their log-probabilities, then `drawn`.

    Take a draw, move the sequence on, and take the next only where the draft was right. Where a row gives no token the iterator
    raises the ServerFault.
    """

    scored: tuple[Drawn, ...]
    drawn: Drawn

    def prompt_tokens(self) -> Iterator[Draw]:
        """Give what was found of each prompt token in order."""
        for each in self.scored:
            yield from _checked(each)

    def draws(self) -> Iterator[Draw]:
        """Give the draws in order."""
        return _checked(self.drawn)


NO_DRAWS = ItemDraws((), Drawn(()))


def draw_items(sampler: Sampler, items: Sequence[SequenceRows], logits: F32) -> list[ItemDraws]:
    """Return the draws of each item, whose rows of logits follow one another: (rows of all, vocabulary_size) float32."""
    planned = [_plan_runs(item) for item in items]
    runs = [run for of_item, _ in planned for run in of_item]
    drawn = iter(sampler.draw(logits, runs) if runs else ())
    return [
        _collect(item, [next(drawn) for _ in of_item], fault)
        for item, (of_item, fault) in zip(items, planned, strict=True)
    ]


# --- from rows to runs ---------------------------------------------------------------------------------------------------


@attrs.frozen
class _Broken:
    """A constraint broke when it was asked about `row`; that row and those after it draw nothing."""

    row: int
    fault: ServerFault


def _plan_runs(item: SequenceRows) -> tuple[list[SamplerRun], _Broken | None]:
    prompt = item.sequence.tokens
    scored = (
        [SamplerRun(item.request, 0, given=prompt[position + 1]) for position in item.scored] if item.scored else []
    )
    if not item.sampled:
        return scored, None
    masks, broken = _masks(item)
    run = SamplerRun(item.request, item.sequence.emitted, item.sampled, item.drafts, masks, item.sequence.edits)
    return [*scored, run], broken


def _masks(item: SequenceRows) -> tuple[tuple[Mask | None, ...], _Broken | None]:
    """Return the mask of each row; a row that no draft can lead to has none, because it never counts."""
    sequence = item.sequence
    if sequence.constraint is None and item.request.min_tokens <= sequence.emitted:
        return (), None
    masks: list[Mask | None] = []
    try:
        _look_ahead(item, masks)
    except ConstraintFailed as fault:
        return _filled(masks, item.sampled), _Broken(len(masks), fault)
    return _filled(masks, item.sampled), None


def _look_ahead(item: SequenceRows, masks: list[Mask | None]) -> None:
    constraint, accepted = item.sequence.constraint, 0
    try:
        for row, draft in enumerate((*item.drafts, None)):
            masks.append(_mask_of_row(item, row))
            if draft is None or draft in item.request.stop_ids or not allows(masks[-1], draft):
                break
            advance(constraint, draft)
            accepted += 1
    finally:
        try:
            take_back(constraint, accepted)
        except ConstraintFailed:
            masks.clear()  # it knows no more where it stands: not even the first row may draw
            raise


def _mask_of_row(item: SequenceRows, row: int) -> Mask | None:
    sequence = item.sequence
    mask = None if sequence.constraint is None else mask_of(sequence.constraint)
    return narrowed(mask, sequence.not_yet) if sequence.emitted + row < item.request.min_tokens else mask


def _filled(masks: list[Mask | None], rows: int) -> tuple[Mask | None, ...]:
    return (*masks, *[None] * (rows - len(masks)))


# --- and back ------------------------------------------------------------------------------------------------------------


def _collect(item: SequenceRows, drawn: list[Drawn], broken: _Broken | None) -> ItemDraws:
    last = drawn.pop() if item.sampled else NO_DRAWS.drawn
    if broken is not None and len(last.draws) >= broken.row:
        last = Drawn(last.draws[: broken.row], broken.fault)
    return ItemDraws(tuple(drawn), last)


def _checked(drawn: Drawn) -> Iterator[Draw]:
    yield from drawn.draws
    if drawn.fault is not None:
        raise drawn.fault
