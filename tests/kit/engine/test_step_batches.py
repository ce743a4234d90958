"""Hand-written step batches: rows, positions and tables as stated."""

from tests.kit.engine.step_batches import Rows, step_batch


def test_step_batch_numbers_rows_and_positions_of_every_sequence() -> None:
    batch = step_batch(Rows([7, 8], 3, [5]), Rows([9], 0, [1, 2]))
    assert batch.tokens.tolist() == [7, 8, 9]
    assert batch.positions.tolist() == [3, 4, 0]
    assert batch.row_starts.tolist() == [0, 2, 3]
    assert [table.tolist() for table in batch.block_tables] == [[5], [1, 2]]
