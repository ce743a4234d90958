"""Step batches written by hand: sequences with their tokens, start positions and blocks become one `StepBatch`."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from tlserve.kernels.interface import KvStore, Model, StepBatch, StepOutput


@attrs.frozen
class Rows:
    """Consecutive rows of one sequence: `tokens` from position `start` on, in the blocks `table`."""

    tokens: Sequence[int]
    start: int
    table: Sequence[int]


def step_batch(*sequences: Rows) -> StepBatch:
    """Return one step over all `sequences` that asks for the logits and the hidden state of every row."""
    ends = np.cumsum([0, *(len(rows.tokens) for rows in sequences)]).astype(np.int32)
    every_row = np.arange(ends[-1], dtype=np.int32)
    return StepBatch(
        tokens=np.array([token for rows in sequences for token in rows.tokens], np.int32),
        positions=np.concatenate(
            [np.arange(rows.start, rows.start + len(rows.tokens), dtype=np.int32) for rows in sequences]
        ),
        row_starts=ends,
        block_tables=tuple(np.array(rows.table, np.int32) for rows in sequences),
        logit_rows=every_row,
        hidden_rows=every_row,
    )


def run_whole(model: Model, tokens: Sequence[int], block_size: int = 16) -> StepOutput:
    """Run one sequence in one step on its own store: every row's logits and hidden state."""
    blocks = -(-len(tokens) // block_size)
    return model.forward(step_batch(Rows(tokens, 0, range(blocks))), model.new_kv_store(blocks, block_size))


def forward_rows(model: Model, kv: KvStore, *sequences: Rows) -> list[np.ndarray]:
    """Run one step and return each sequence's logits, (its rows, vocabulary)."""
    batch = step_batch(*sequences)
    return np.split(model.forward(batch, kv).logits, batch.row_starts[1:-1])
