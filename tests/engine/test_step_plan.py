"""The layout of one step."""

import pytest

from tlserve.engine.blocks.kv_blocks import BlockTable
from tlserve.engine.pooling import HiddenSum
from tlserve.engine.sequence import EngineSequence
from tlserve.engine.step_plan import plan_batch, plan_rows
from tlserve.generation import GenerationRequest

REQUEST = GenerationRequest(prompt=(1,), max_tokens=9, seed=0)


def sequence(tokens, computed, blocks, *, embedding=False):
    return EngineSequence(
        key=1,
        priority=0,
        tokens=tokens,
        prompt_tokens=len(tokens),
        limit=99,
        table=BlockTable(blocks=blocks),
        computed=computed,
        request=None if embedding else REQUEST,
        hidden_sum=HiddenSum() if embedding else None,
    )


@pytest.mark.spec("ENG-19")
def test_rows_of_all_kinds_are_side_by_side_in_one_step():
    batch = plan_batch(
        [
            plan_rows(sequence([10, 11, 12], 2, [4]), 1, (90, 91)),  # a decode with two drafts
            plan_rows(sequence([20, 21, 22, 23], 1, [7, 8]), 2),  # a chunk that ends before its prompt
            plan_rows(sequence([30, 31], 0, [1]), 2),  # a whole prompt
            plan_rows(sequence([40, 41, 42], 1, [2], embedding=True), 2),
        ]
    )
    assert batch.tokens.tolist() == [12, 90, 91, 21, 22, 30, 31, 41, 42]
    assert batch.positions.tolist() == [2, 3, 4, 1, 2, 0, 1, 1, 2]
    assert batch.row_starts.tolist() == [0, 3, 5, 7, 9]
    assert [table.tolist() for table in batch.block_tables] == [[4], [7, 8], [1], [2]]
    assert batch.logit_rows.tolist() == [0, 1, 2, 6]
    assert batch.hidden_rows.tolist() == [7, 8]


@pytest.mark.spec("ENG-19")
def test_the_plan_of_a_step_stays_the_same_after_the_sequence_advances():
    moving = sequence([1, 2, 3], 0, [0])
    rows = plan_rows(moving, 3)
    moving.computed = 3
    assert (rows.start, rows.sampled, rows.tokens) == (0, 1, [1, 2, 3])
