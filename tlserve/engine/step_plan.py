"""What one step computes: rows of sequences, and the arrays for the model.

Owns the layout of a step: which rows there are, and which of them need logits or hidden states. Decides nothing: the scheduler
did.
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
    """The rows of one sequence: its next `count` known tokens from position `start`, then the guessed `drafts`.

    `scored` are the positions whose logits give the log-probability of the prompt's next token. The last `sampled` rows, those
    of the last known token and of each draft, are drawn from. All of it is as the sequence was when the step was planned; the
    results of the step move the sequence on.
    """

    sequence: EngineSequence
    count: int
    drafts: tuple[int, ...]
    start: int
    scored: range
    sampled: int

    @property
    def logit_rows(self) -> int:
        """Rows that need logits; they follow one another."""
        return len(self.scored) + self.sampled

    @property
    def request(self) -> GenerationRequest:
        """The request that the tokens are drawn for; only rows that need logits have one."""
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


def plan_rows(sequence: EngineSequence, count: int, drafts: tuple[int, ...] = ()) -> SequenceRows:
    """Return the rows of the next `count` known tokens of `sequence`, and of `drafts` after them."""
    start = sequence.computed
    reaches_end = count == sequence.pending
    sampled = 1 + len(drafts) if sequence.request and reaches_end else 0
    scored = _scored(sequence, count) if sequence.scores else NOTHING_SCORED
    return SequenceRows(sequence, count, drafts, start, scored, sampled)


def _scored(sequence: EngineSequence, count: int) -> range:
    first, end = sequence.scored - 1, sequence.prompt_tokens - 1
    return range(max(first, sequence.computed), min(end, sequence.computed + count))


def plan_batch(planned: Sequence[SequenceRows]) -> StepBatch:
    """Lay the rows out for `Model.forward`; sequences keep the order of `planned`."""
    tokens: list[int] = []
    positions: list[int] = []
    logit_rows: list[int] = []
    hidden_rows: list[int] = []
    starts = [0]
    for rows in planned:
        first, end = len(tokens), len(tokens) + rows.rows
        tokens += rows.tokens
        positions += range(rows.start, rows.start + rows.rows)
        starts.append(end)
        if rows.scored:
            logit_rows += range(first + rows.scored.start - rows.start, first + rows.scored.stop - rows.start)
        logit_rows += range(end - rows.sampled, end)
        hidden_rows += range(first, end) if rows.sequence.hidden_sum else ()
    return StepBatch(
        tokens=np.array(tokens, dtype=np.int32),
        positions=np.array(positions, dtype=np.int32),
        row_starts=np.array(starts, dtype=np.int32),
        block_tables=tuple(rows.sequence.table.as_array() for rows in planned),
        logit_rows=np.array(logit_rows, dtype=np.int32),
        hidden_rows=np.array(hidden_rows, dtype=np.int32),
    )
