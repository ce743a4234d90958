"""A model without arithmetic: its logits are a hash of the whole sequence, read back through the paged KV store.

This is the `Model` of the engine's tests. One lost, doubled, reordered or misplaced entry of the store changes the hash, and
so every logit after it. `pull` draws the sequence towards a fixed successor of its last token, so that texts repeat
themselves and drafted tokens have a chance.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.kernels.interface import KvStore, ModelSpec, StepBatch, StepOutput

_UNWRITTEN = np.uint64(0xDEAD)


def mix(values: NDArray[Any]) -> NDArray[np.uint64]:
    """Scramble (n,) uint64 (the finaliser of splitmix64)."""
    values = values.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@attrs.define(eq=False)
class HashKv:
    blocks: int
    block_size: int
    entries: np.ndarray = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.entries = np.full((self.blocks, self.block_size), _UNWRITTEN)


@attrs.define(eq=False)
class HashModel:
    """`forwards` keeps the received batches, for tests that check the schedule."""

    vocabulary_size: int = 61
    hidden_size: int = 8
    context_tokens: int = 4096
    pull: float = 4.0
    forwards: list[StepBatch] = attrs.field(factory=list)

    @property
    def spec(self) -> ModelSpec:
        return ModelSpec(
            architecture="hash",
            vocabulary_size=self.vocabulary_size,
            hidden_size=self.hidden_size,
            context_tokens=self.context_tokens,
            kv_bytes_per_token=8,
            kernels="none",
            numerics="hash",
        )

    def new_kv_store(self, blocks: int, block_size: int) -> HashKv:
        return HashKv(blocks, block_size)

    def forward(self, batch: StepBatch, kv: KvStore) -> StepOutput:
        assert isinstance(kv, HashKv)
        self.forwards.append(batch)
        logit_rows, hidden_rows = set(batch.logit_rows.tolist()), set(batch.hidden_rows.tolist())
        logits, hidden = [], []
        for s, table in enumerate(batch.block_tables):
            rows = range(batch.row_starts[s], batch.row_starts[s + 1])
            positions, tokens = batch.positions[rows.start : rows.stop], batch.tokens[rows.start : rows.stop]
            assert (np.diff(positions) == 1).all()
            kv.entries[table[positions // kv.block_size], positions % kv.block_size] = mix(tokens)
            read = kv.entries[table].reshape(-1)[: positions[-1] + 1]
            assert _UNWRITTEN not in read
            # The sum over places of a scramble of (entry, place): it depends on every entry and its place.
            hashes = np.add.accumulate(mix(read ^ mix(np.arange(len(read)))))
            for row in rows:
                if row in logit_rows:
                    logits.append(self.logits_of(int(hashes[batch.positions[row]]), int(batch.tokens[row])))
                if row in hidden_rows:
                    hidden.append(self._noise(int(hashes[batch.positions[row]]) ^ 1, self.hidden_size))
        return StepOutput(
            logits=np.array(logits, dtype=np.float32).reshape(len(logits), self.vocabulary_size),
            hidden=np.array(hidden, dtype=np.float32).reshape(len(hidden), self.hidden_size),
        )

    def logits_of(self, state: int, token: int) -> np.ndarray:
        logits = self._noise(state, self.vocabulary_size)
        logits[(token * 3 + 1) % self.vocabulary_size] += self.pull
        return logits

    def _noise(self, state: int, size: int) -> np.ndarray:
        return np.random.Generator(np.random.PCG64(state)).standard_normal(size, dtype=np.float32)
