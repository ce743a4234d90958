"""What one step computes, as rows of sequences, and the arrays of it.

Owns the layout of a step: which rows there are, and of which ones logits or hidden states are wanted. Refuses to decide
anything: the scheduler did.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from tlserve.engine.sequence import EngineSequence
from tlserve.generation import GenerationRequest
from tlserve.kernels.interface import StepBatch

NOTHING_SCORED = range(0)


@attrs.frozen(eq=False)
class SequenceRows:
    """The rows of one sequence: its next `count` known tokens, then the guessed `drafts`.

    `start` and `sampled` are facts of the moment of planning: settling the step moves the sequence on.
    """

    sequence: EngineSequence
    count: int
    drafts: tuple[int, ...] = ()
    start: int = attrs.field(init=False)  # position of the first row
    scored: range = attrs.field(init=False)  # positions whose logits say how likely the prompt's next token was
    sampled: int = attrs.field(init=False)  # rows after those, to draw from: the last known token's, and each draft's

    @start.default
    def _start(self) -> int:
        return self.sequence.computed

    @scored.default
    def _scored(self) -> range:
        if not self.sequence.scores:
            return NOTHING_SCORED
        first, end = self.sequence.scored - 1, self.sequence.prompt_tokens - 1
        return range(max(first, self.start), min(end, self.start + self.count))

    @sampled.default
    def _sampled(self) -> int:
        reaches_end = self.count == self.sequence.pending
        return 1 + len(self.drafts) if self.sequence.request and reaches_end else 0

    @property
    def logit_rows(self) -> int:
        """Rows whose logits are wanted; they follow one another."""
        return len(self.scored) + self.sampled

    @property
    def request(self) -> GenerationRequest:
        """What the tokens are drawn for; only rows whose logits are wanted have it."""
        assert self.sequence.request is not None
        return self.sequence.request

    @property
    def rows(self) -> int:
        """Rows in all."""
        return self.count + len(self.drafts)

    @property
    def tokens(self) -> list[int]:
        """The tokens of the rows."""
        return [*self.sequence.tokens[self.start : self.start + self.count], *self.drafts]


def plan_batch(planned: Sequence[SequenceRows]) -> StepBatch:
    """Lay the rows out for `Model.forward`; sequences keep the order of `planned`."""
    tokens: list[int] = []
    positions: list[int] = []
    logit_rows: list[int] = []
    hidden_rows: list[int] = []
    starts = [0]
    for item in planned:
        first, end = len(tokens), len(tokens) + item.rows
        tokens += item.tokens
        positions += range(item.start, item.start + item.rows)
        starts.append(end)
        if item.scored:
            logit_rows += range(first + item.scored.start - item.start, first + item.scored.stop - item.start)
        logit_rows += range(end - item.sampled, end)
        hidden_rows += range(first, end) if item.sequence.hidden_sum else ()
    return StepBatch(
        tokens=np.array(tokens, dtype=np.int32),
        positions=np.array(positions, dtype=np.int32),
        row_starts=np.array(starts, dtype=np.int32),
        block_tables=tuple(item.sequence.table.as_array() for item in planned),
        logit_rows=np.array(logit_rows, dtype=np.int32),
        hidden_rows=np.array(hidden_rows, dtype=np.int32),
    )
