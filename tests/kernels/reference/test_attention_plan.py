"""The plan of a step: tiles that are read in place or gathered, and the keys that a lane sees."""

import numpy as np
import pytest

from tests.kit.engine.step_batches import Rows, step_batch
from tlserve.kernels.reference.attention_plan import KEY_TILE, LANES, plan_attention


def plan(*rows, block_size=16, group=3, threads=1, window=0):
    return plan_attention(step_batch(*rows), block_size, group, threads, window)


def keys_seen(made, first_tiles):
    """Return {(row, group head): the keys it sees}; `first_tiles` of each batch's lane tiles."""
    seen_by = {}
    for batch, starts in zip(made.batches, first_tiles, strict=True):
        seen = np.ones((int(batch.key_tiles.sum()), batch.live, KEY_TILE), bool)
        seen[batch.masked_units] = ~batch.mask[:, 0]
        for lane, row, head in zip(batch.lane, batch.row, batch.group_head, strict=True):
            tile = lane // LANES
            units = seen[batch.unit_starts[tile] : batch.unit_starts[tile] + batch.key_tiles[tile], lane % LANES]
            seen_by[row, head] = (np.flatnonzero(units.reshape(-1)) + starts[tile] * KEY_TILE).tolist()
    return seen_by


def keys_by_unit(batch, gathered):
    """Return {(lane tile, key tile): first slot, or of the gathered copy its slots} for every unit of a batch."""
    units = {}
    for piece in batch.pieces:
        segment = piece.segment
        for lane_tile in range(piece.lane_tiles.start, piece.lane_tiles.stop):
            for i in range(segment.count):
                slot = segment.slot + i * KEY_TILE
                slots = np.arange(slot, slot + KEY_TILE)
                units[lane_tile, segment.first + i] = gathered[slots] if segment.gathered else slots
    return units


def test_blocks_that_follow_one_another_are_one_segment_and_nothing_is_gathered():
    made = plan(Rows([1], 199, range(5, 18)))
    (batch,) = made.batches
    (piece,) = batch.pieces
    assert len(made.gathered_slots) == 0
    assert (piece.segment.first, piece.segment.count, piece.segment.slot) == (0, 4, 80)


@pytest.mark.spec("MOD-41")
def test_only_a_tile_whose_blocks_are_apart_is_gathered():
    table = [0, 1, 2, 3, 8, 20, 9, 21, 12, 13]
    made = plan(Rows([1], 159, table))
    (batch,) = made.batches
    assert [(p.segment.first, p.segment.count, p.segment.gathered) for p in batch.pieces] == [
        (0, 1, False),
        (1, 1, True),
        (2, 1, False),
    ]
    assert made.gathered_slots.tolist() == [16 * b + i for b in (8, 20, 9, 21) for i in range(16)]


@pytest.mark.spec("MOD-8")
@pytest.mark.parametrize("block_size", [1, 5, 16, 64, 100])
def test_every_key_of_every_unit_is_read_from_the_slot_of_its_position(block_size):
    random = np.random.default_rng(block_size)
    table = random.permutation(300)[: -(-230 // block_size)]
    made = plan(Rows(range(70), 160, table), block_size=block_size)
    for batch in made.batches:
        for (_, tile), slots in keys_by_unit(batch, made.gathered_slots).items():
            positions = np.arange(tile * KEY_TILE, min((tile + 1) * KEY_TILE, 230))
            expected = table[positions // block_size] * block_size + positions % block_size
            assert slots[: len(positions)].tolist() == expected.tolist()


def test_rows_are_stored_in_the_slots_of_their_positions():
    made = plan(Rows([1, 2, 3], 30, [4, 9, 2]), Rows([7], 0, [6]))
    assert made.slots.tolist() == [9 * 16 + 14, 9 * 16 + 15, 2 * 16, 6 * 16]


def test_every_row_and_head_of_a_group_has_one_lane():
    made = plan(Rows(range(50), 10, range(8)), Rows([1], 70, range(10, 16)), Rows([1, 2], 0, [20]), threads=2)
    pairs = [(row, head) for b in made.batches for row, head in zip(b.row.tolist(), b.group_head.tolist(), strict=True)]
    assert sorted(pairs) == [(row, head) for row in range(53) for head in range(3)]
    assert all(len(set(b.lane.tolist())) == len(b.lane) for b in made.batches)
    assert all((b.lane % LANES < b.live).all() for b in made.batches)


@pytest.mark.spec("MOD-8")
def test_a_lane_sees_exactly_the_keys_up_to_its_row():
    positions = [*range(60, 70), 5]
    made = plan(Rows(range(10), 60, range(8)), Rows([1], 5, [9]))
    for batch in made.batches:
        seen = np.ones((int(batch.key_tiles.sum()), batch.live, KEY_TILE), bool)
        seen[batch.masked_units] = ~batch.mask[:, 0]
        for lane, row in zip(batch.lane, batch.row, strict=True):
            start, count = batch.unit_starts[lane // LANES], batch.key_tiles[lane // LANES]
            row_sees = seen[start : start + count, lane % LANES].reshape(-1)
            assert np.flatnonzero(row_sees).tolist() == list(range(positions[row] + 1))


@pytest.mark.spec("MOD-22", "MOD-46")
@pytest.mark.parametrize(("window", "first_tile"), [(1, 3), (8, 3), (9, 3), (10, 2), (100, 1), (138, 0), (500, 0)])
def test_with_a_window_a_lane_sees_its_last_keys_and_earlier_tiles_are_left_out(window, first_tile):
    made = plan(Rows(range(10), 200, range(20)), window=window)
    (batch,) = made.batches
    assert batch.key_tiles.tolist() == [4 - first_tile] * len(batch.key_tiles)
    seen = keys_seen(made, [[first_tile] * len(batch.key_tiles)])
    for (row, _), keys in seen.items():
        assert keys == list(range(max(0, 200 + row - window + 1), 200 + row + 1))
    assert {piece.segment.slot for piece in batch.pieces} == {first_tile * KEY_TILE}


@pytest.mark.spec("MOD-46")
def test_tiles_before_every_window_are_not_gathered():
    table = np.random.default_rng(0).permutation(40)[:20]
    made = plan(Rows([1], 300, table), window=20)
    assert made.gathered_slots.tolist() == [
        int(table[min(p, 300) // 16]) * 16 + min(p, 300) % 16 for p in range(256, 320)
    ]


def test_work_is_divided_into_at_least_as_many_batches_as_threads():
    rows = [Rows([1], 150, range(10 * i, 10 * i + 10)) for i in range(8)]
    assert len(plan(*rows, threads=1).batches) == 1
    assert len(plan(*rows, threads=4).batches) >= 4
