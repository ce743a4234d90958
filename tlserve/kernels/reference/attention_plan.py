"""Where the rows of a step find their keys: made once per step, used by every layer.

Owns the cutting of attention into tiles. The keys of a sequence are cut into tiles of `KEY_TILE` positions counted from
position 0. A *task* is a few rows of one sequence with all the key tiles up to its last row. The (row, query head of a group)
pairs of a task are its *lanes*, eight in a lane tile. With a window a row sees its last keys alone, and tiles that no row of a
task sees are left out of it: they would add exactly nothing. A tile whose blocks follow one another is read in place; only a
tile whose blocks do not is gathered. Refuses to know layers and numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.interface import StepBatch

KEY_TILE = 64
LANES = 8
_TASK_ROWS = 32  # rows of one task at most: a task computes whole rectangles of tiles, also above the diagonal
_BATCH_UNITS = 256  # (lane tile, key tile) pairs of one batch at most, unless a single task has more

Ints = NDArray[np.int64]


@attrs.frozen(eq=False)
class Segment:
    """Key tiles first .. first + count: at `slot` of the store, or of the gathered copy."""

    first: int
    count: int
    slot: int
    gathered: bool


@attrs.frozen(eq=False)
class Task:
    """Rows `start` .. `end` of the step, all of one sequence, and their `key_tiles` key tiles from `first_tile` on.

    Segments are numbered from `first_tile`.
    """

    start: int
    end: int
    lane_tiles: int
    first_tile: int
    key_tiles: int
    segments: tuple[Segment, ...]


@attrs.frozen(kw_only=True, eq=False)
class Piece:
    """One segment of one task, by its numbers in the batch: its lane tiles, all units of the task, and where it lies in them."""

    lane_tiles: slice
    units: slice
    shape: tuple[int, int]  # (lane tiles, key tiles) of the task
    segment: Segment

    def view(self, per_unit: NDArray[np.float32]) -> NDArray[np.float32]:
        """View the piece's part of `per_unit` (units, ...) as (lane tiles, key tiles of the segment, ...)."""
        task = per_unit[self.units].reshape(self.shape + per_unit.shape[1:])
        return task[:, self.segment.first : self.segment.first + self.segment.count]


@attrs.frozen(kw_only=True, eq=False)
class TaskBatch:
    """Tasks whose softmax runs in common. Lane tile l has units unit_starts[l] .. unit_starts[l] + key_tiles[l].

    Lanes are numbered through: lane i of the batch lies in lane tile i // LANES. Lane tiles are sorted by their number of key
    tiles, most first, so that those that have a t-th key tile are the first ones.
    """

    pieces: tuple[Piece, ...]
    live: int  # lanes that are in use in some lane tile
    lane: Ints  # (n,) the lane of each (row, group head) pair
    row: Ints  # (n,) its row
    group_head: Ints  # (n,) its query head inside the group
    key_tiles: Ints  # (lane tiles,)
    unit_starts: Ints  # (lane tiles,)
    tile_counts: tuple[int, ...]  # how many lane tiles have a t-th key tile
    masked_units: Ints  # (m,) units in which some key lies after some lane's row
    mask: NDArray[np.bool_]  # (m, 1, live, KEY_TILE): True where the key is not seen


@attrs.frozen(kw_only=True, eq=False)
class AttentionPlan:
    """The whole step: where its rows are stored, what is gathered, and the batches."""

    slots: Ints  # (T,) the slot of each row
    gathered_slots: Ints  # (g * KEY_TILE,) slots of the gathered tiles, in their order
    batches: tuple[TaskBatch, ...]


def plan_attention(batch: StepBatch, block_size: int, group: int, threads: int, window: int = 0) -> AttentionPlan:
    """Cut the attention of `batch`. `group`: query heads per key head; `threads`: how many batches are wanted at least.

    `window`: how many keys, its own the last of them, a row sees; 0: all.
    """
    tasks: list[Task] = []
    slots = np.empty(len(batch.tokens), np.int64)
    gathered: list[Ints] = []
    for sequence, table in enumerate(batch.block_tables):
        start, end = int(batch.row_starts[sequence]), int(batch.row_starts[sequence + 1])
        positions = batch.positions[start:end].astype(np.int64)
        slots[start:end] = table[positions // block_size].astype(np.int64) * block_size + positions % block_size
        first_tile = _first_tile(int(positions[0]), window)
        segments = _segments(table, first_tile, int(positions[-1]) + 1, block_size, gathered)
        tasks.extend(_tasks(start, end, int(positions[0]), group, segments, window))
    return AttentionPlan(
        slots=slots,
        gathered_slots=np.concatenate(gathered) if gathered else np.empty(0, np.int64),
        batches=tuple(_task_batch(part, batch.positions, group, window) for part in _split(tasks, group, threads)),
    )


def _first_tile(position: int, window: int) -> int:
    """Return the first key tile that the row at `position` sees a key of."""
    return max(0, position - window + 1) // KEY_TILE if window else 0


def _segments(
    table: NDArray[np.int32], first_tile: int, length: int, block_size: int, gathered: list[Ints]
) -> list[Segment]:
    """Cut the key tiles of a sequence, from `first_tile` on, into runs that are one array; add to `gathered` what is not.

    length: positions of the sequence.
    """
    blocks = table[: -(-length // block_size)].astype(np.int64)
    first_block = np.arange(0, length, KEY_TILE) // block_size
    last_block = (np.minimum(np.arange(KEY_TILE, length + KEY_TILE, KEY_TILE), length) - 1) // block_size
    breaks = np.concatenate([[0], np.cumsum(np.diff(blocks) != 1)])  # equal numbers: no break between two blocks
    whole = breaks[first_block] == breaks[last_block]
    starts = blocks[first_block] * block_size + np.arange(0, length, KEY_TILE) % block_size
    segments: list[Segment] = []
    for tile in range(first_tile, len(whole)):
        in_place, slot = bool(whole[tile]), int(starts[tile])
        if not in_place:
            slot = sum(map(len, gathered))
            positions = np.minimum(np.arange(tile * KEY_TILE, (tile + 1) * KEY_TILE), length - 1)
            gathered.append(blocks[positions // block_size] * block_size + positions % block_size)
        _append(segments, Segment(tile, 1, slot, not in_place))
    return segments


def _append(segments: list[Segment], segment: Segment) -> None:
    """Append `segment`, or lengthen the last one by it where it lies right behind."""
    last = segments[-1] if segments else None
    if last and last.gathered == segment.gathered and last.slot + last.count * KEY_TILE == segment.slot:
        segments[-1] = attrs.evolve(last, count=last.count + 1)
    else:
        segments.append(segment)


def _tasks(start: int, end: int, position: int, group: int, segments: list[Segment], window: int) -> Iterator[Task]:
    """Cut the rows of one sequence into tasks, each with the key tiles from its first row's first to its last row's last."""
    for first in range(start, end, _TASK_ROWS):
        last = min(first + _TASK_ROWS, end)
        first_tile = _first_tile(position + first - start, window)
        end_tile = (position + last - start - 1) // KEY_TILE + 1
        seen = tuple(_within(segments, first_tile, end_tile))
        yield Task(first, last, -(-(last - first) * group // LANES), first_tile, end_tile - first_tile, seen)


def _within(segments: list[Segment], first_tile: int, end_tile: int) -> Iterator[Segment]:
    """Yield what of `segments` lies in tiles first_tile .. end_tile, numbered from `first_tile`."""
    for segment in segments:
        begin, end = max(segment.first, first_tile), min(segment.first + segment.count, end_tile)
        if begin < end:
            slot = segment.slot + (begin - segment.first) * KEY_TILE
            yield Segment(begin - first_tile, end - begin, slot, segment.gathered)


def _split(tasks: Iterable[Task], group: int, threads: int) -> Iterator[Sequence[Task]]:
    """Split tasks into batches of like ones: by the lanes in use, then most key tiles first."""
    ordered = sorted(tasks, key=lambda task: (_live(task, group), -task.key_tiles))
    most = min(_BATCH_UNITS, -(-sum(task.lane_tiles * task.key_tiles for task in ordered) // threads))
    part: list[Task] = []
    units = 0
    for task in ordered:
        size = task.lane_tiles * task.key_tiles
        if part and (units + size > most or _live(part[0], group) != _live(task, group)):
            yield part
            part, units = [], 0
        part.append(task)
        units += size
    if part:
        yield part


def _live(task: Task, group: int) -> int:
    """Return how many lanes of a lane tile are in use."""
    return min(LANES, (task.end - task.start) * group)


def _task_batch(tasks: Sequence[Task], positions: NDArray[np.int32], group: int, window: int) -> TaskBatch:
    """Give numbers to the lanes and units of `tasks`, and mark the keys that a lane's row does not see."""
    lane_tiles = np.array([task.lane_tiles for task in tasks])
    first_lane = (np.cumsum(lane_tiles) - lane_tiles) * LANES
    rows = np.concatenate([np.repeat(np.arange(task.start, task.end), group) for task in tasks])
    lanes = np.concatenate(
        [first + np.arange((task.end - task.start) * group) for first, task in zip(first_lane, tasks, strict=True)]
    )
    key_tiles = np.repeat([task.key_tiles for task in tasks], lane_tiles)
    unit_starts = np.cumsum(key_tiles) - key_tiles
    live = _live(tasks[0], group)
    first_tiles = np.repeat([task.first_tile for task in tasks], lane_tiles)
    masked_units, mask = _mask(positions[rows], lanes, first_tiles, key_tiles, live, window)
    return TaskBatch(
        pieces=tuple(_pieces(tasks)),
        live=live,
        lane=lanes,
        row=rows,
        group_head=np.concatenate([np.tile(np.arange(group), task.end - task.start) for task in tasks]),
        key_tiles=key_tiles,
        unit_starts=unit_starts,
        tile_counts=tuple(int((key_tiles > t).sum()) for t in range(key_tiles[0])),
        masked_units=masked_units,
        mask=mask,
    )


def _pieces(tasks: Sequence[Task]) -> Iterator[Piece]:
    """Give numbers to the lane tiles and units of `tasks`, in their order."""
    lane_tile = unit = 0
    for task in tasks:
        lane_tiles = slice(lane_tile, lane_tile + task.lane_tiles)
        units = slice(unit, unit + task.lane_tiles * task.key_tiles)
        shape = (task.lane_tiles, task.key_tiles)
        for segment in task.segments:
            yield Piece(lane_tiles=lane_tiles, units=units, shape=shape, segment=segment)
        lane_tile, unit = lane_tiles.stop, units.stop


def _mask(
    positions: NDArray[np.int32], lanes: Ints, first_tiles: Ints, key_tiles: Ints, live: int, window: int
) -> tuple[Ints, NDArray[np.bool_]]:
    """Return the units with a key that some lane does not see, and which keys each lane of them does not see."""
    # a lane that is not in use sees the first key of its lane tile alone
    lane_position = np.repeat(first_tiles * KEY_TILE, LANES)
    lane_position[lanes] = positions
    lane_position = lane_position.reshape(-1, LANES)[:, :live]
    lane_tile = np.repeat(np.arange(len(key_tiles)), key_tiles)
    unit_starts = np.cumsum(key_tiles) - key_tiles
    first_key = (np.arange(len(lane_tile)) - unit_starts[lane_tile] + first_tiles[lane_tile]) * KEY_TILE
    unseen = first_key + KEY_TILE - 1 > lane_position.min(axis=1)[lane_tile]
    if window:
        unseen |= first_key <= lane_position.max(axis=1)[lane_tile] - window
    masked = np.flatnonzero(unseen)
    keys, seen_by = first_key[masked, None, None] + np.arange(KEY_TILE), lane_position[lane_tile[masked]][:, :, None]
    hidden = keys > seen_by
    if window:
        hidden |= keys <= seen_by - window
    return masked, hidden[:, None]
