"""The hash model keeps the contract of a model, and notices every misplaced entry of its store."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tests.kit.engine.hash_model import HashKv, HashModel
from tlserve.kernels.interface import StepBatch, StepOutput


def forward(
    model: HashModel, kv: HashKv, tokens: Sequence[int], start: int = 0, table: Sequence[int] = (0, 1, 2)
) -> StepOutput:
    rows = len(tokens)
    batch = StepBatch(
        tokens=np.array(tokens, np.int32),
        positions=np.arange(start, start + rows, dtype=np.int32),
        row_starts=np.array([0, rows], np.int32),
        block_tables=(np.array(table, np.int32),),
        logit_rows=np.array([rows - 1], np.int32),
        hidden_rows=np.arange(rows, dtype=np.int32),
    )
    return model.forward(batch, kv)


def logits(
    change: Callable[[HashKv], None] = lambda kv: None,
    tokens: Sequence[int] = (1, 2, 3, 4, 5),
    cut: int = 4,
    table: Sequence[int] = (0, 1, 2),
) -> object:
    model = HashModel()
    kv = model.new_kv_store(4, 2)
    forward(model, kv, tokens[:cut], table=table)
    change(kv)
    return forward(model, kv, tokens[cut:], cut, table).logits.tolist()


def test_chunks_and_blocks_do_not_change_a_row() -> None:
    assert logits(cut=4) == logits(cut=1) == logits(table=(3, 0, 2))


def swap(kv: HashKv) -> None:
    kv.entries[0, 0], kv.entries[0, 1] = kv.entries[0, 1].copy(), kv.entries[0, 0].copy()


def double(kv: HashKv) -> None:
    kv.entries[1] = kv.entries[0]


def stale(kv: HashKv) -> None:
    kv.entries[1, 1] += np.uint64(1)


@pytest.mark.parametrize("damage", [swap, double, stale])
def test_damage_to_the_store_changes_the_logits(damage: Callable[[HashKv], None]) -> None:
    assert logits(damage) != logits()


def test_an_entry_that_was_never_written_is_an_error() -> None:
    model = HashModel()
    with pytest.raises(AssertionError):
        forward(model, model.new_kv_store(4, 2), [5], start=3)
