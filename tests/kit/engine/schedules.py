"""Random schedules of step batches, and the comparison of bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.kit.engine.step_batches import Rows, forward_rows
from tlserve.kernels.interface import KvStore, Model


def random_schedule(
    model: Model,
    kv: KvStore,
    sequences: Sequence[NDArray[Any]],
    random: np.random.Generator,
    block_size: int,
    blocks: int,
    longest_chunk: int,
) -> list[NDArray[np.float32]]:
    """Run all sequences together to their ends in random chunks; return the logits of all rows of each."""
    free = random.permutation(blocks).tolist()
    tables: list[list[int]] = [[] for _ in sequences]
    done = [0] * len(sequences)
    logits: list[list[NDArray[np.float32]]] = [[] for _ in sequences]
    while waiting := [s for s, tokens in enumerate(sequences) if done[s] < len(tokens)]:
        chosen = random.permutation([s for s in waiting if random.random() < 0.7] or waiting[:1])
        rows = []
        for s in chosen:
            count = min(int(random.integers(1, longest_chunk + 1)), len(sequences[s]) - done[s])
            while len(tables[s]) * block_size < done[s] + count:
                tables[s].append(free.pop())
            rows.append(Rows(sequences[s][done[s] : done[s] + count], done[s], tables[s]))
            done[s] += count
        for s, part in zip(chosen, forward_rows(model, kv, *rows), strict=True):
            logits[s].append(part)
    return [np.concatenate(parts) for parts in logits]


def same_bits(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return a.shape == b.shape and np.array_equal(a.view(np.int32), b.view(np.int32))
