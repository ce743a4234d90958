"""The arithmetic's interface: one forward pass over one step's rows.

Has the types that cross between the engine and the arithmetic: `StepBatch` in, `StepOutput` out, and the protocols `Model` and
`KvStore`. Does not know how rows were chosen (engine) or where weights came from (model). The reference in numpy and the native
kernels are both a `Model`; the engine calls `Model.forward` once per step.
"""

from __future__ import annotations

import enum
from typing import Protocol, TypeVar

import attrs
import numpy as np
from numpy.typing import NDArray


@attrs.frozen(kw_only=True, eq=False)
class StepBatch:
    """The rows of one step, grouped by sequence: T rows of S sequences.

    Row r has token `tokens[r]` at position `positions[r]`. Sequence s owns rows `row_starts[s]:row_starts[s + 1]`, at
    consecutive ascending positions; after the step its keys and values at positions `0 .. positions[last]` are stored.
    Position p of sequence s is in block `block_tables[s][p // block_size]`, slot `p % block_size`. Every row attends to
    positions 0..its own; in a bidirectional model to all of its sequence, which is whole in the step.
    """

    tokens: NDArray[np.int32]  # (T,)
    positions: NDArray[np.int32]  # (T,)
    row_starts: NDArray[np.int32]  # (S + 1,)
    block_tables: tuple[NDArray[np.int32], ...]  # S arrays, each (blocks of that sequence,)
    logit_rows: NDArray[np.int32]  # (N,) rows whose logits are requested, ascending
    hidden_rows: NDArray[np.int32]  # (P,) rows whose final-normed hidden states are requested, ascending


@attrs.frozen(kw_only=True, eq=False)
class StepOutput:
    """What a step returns; rows in the order of `logit_rows` and `hidden_rows`."""

    logits: NDArray[np.float32]  # (N, vocabulary_size)
    hidden: NDArray[np.float32]  # (P, hidden_size)


class PooledRows(enum.Enum):
    """Which hidden states of a sequence become its vector."""

    MEAN = "mean"
    FIRST = "first"
    LAST = "last"


class PooledActivation(enum.Enum):
    """The function after a layer of a pooled vector; GELU by the error function."""

    IDENTITY = "identity"
    TANH = "tanh"
    GELU = "gelu"


@attrs.frozen(kw_only=True)
class PooledLayer:
    """A layer that a pooled vector passes: norm(activation(weight @ vector + bias)), (inputs,) -> (outputs,).

    A LayerNorm of `norm_weight` and `norm_epsilon` where there is one. `name` tells layers apart, with what they came from.
    """

    name: str
    weight: NDArray[np.float32] = attrs.field(repr=False, eq=False)  # (outputs, inputs)
    bias: NDArray[np.float32] | None = attrs.field(default=None, repr=False, eq=False)
    activation: PooledActivation = PooledActivation.IDENTITY
    norm_weight: NDArray[np.float32] | None = attrs.field(default=None, repr=False, eq=False)
    norm_epsilon: float = 0.0


@attrs.frozen(kw_only=True)
class Pooling:
    """How the hidden states of a sequence become one vector: the rows, then `layers`; `normalised`: length 1 at the end."""

    rows: PooledRows = PooledRows.MEAN
    layers: tuple[PooledLayer, ...] = ()
    normalised: bool = True

    def size(self, hidden: int) -> int:
        """Return the length of the vector that becomes of hidden states of `hidden` numbers."""
        return len(self.layers[-1].weight) if self.layers else hidden


@attrs.frozen(kw_only=True)
class ModelSpec:
    """What the engine must know about a model to schedule it. `kv_bytes_per_token` is 0 for a model that stores nothing.

    `numerics` is a short hash of everything that decides the bits: weights, sizes, precision, library builds where they do.
    `bidirectional`: an encoder. Every row sees its whole sequence, so a step holds whole sequences only, nothing is stored
    between steps, and there are no logits.
    """

    architecture: str
    vocabulary_size: int
    hidden_size: int
    context_tokens: int
    kv_bytes_per_token: int
    kernels: str
    numerics: str
    bidirectional: bool = False
    pooling: Pooling = Pooling()

    @property
    def embedding_size(self) -> int:
        """Return the length of the vectors."""
        return self.pooling.size(self.hidden_size)


class KvStore(Protocol):
    """The keys and values of `blocks` blocks of `block_size` positions each; only `Model.forward` looks inside."""

    @property
    def blocks(self) -> int:
        """Number of blocks."""

    @property
    def block_size(self) -> int:
        """Positions per block."""


@attrs.frozen(kw_only=True)
class NoKvStore:
    """The `KvStore` of a model that keeps nothing between steps: it counts blocks and holds no memory."""

    blocks: int
    block_size: int


Store = TypeVar("Store", bound=KvStore)


def own_store(kv: KvStore, kind: type[Store]) -> Store:
    """Return `kv`, which must be of the `kind` that the model makes itself; raises TypeError otherwise."""
    if not isinstance(kv, kind):
        raise TypeError("a forward pass takes a store made by its own model's new_kv_store")
    return kv


class Model(Protocol):
    """A model's forward pass. Not thread-safe: one caller at a time."""

    @property
    def spec(self) -> ModelSpec:
        """What the engine must know of the model."""

    def new_kv_store(self, blocks: int, block_size: int) -> KvStore:
        """Reserve memory for `blocks` blocks (it is touched only when it is used)."""

    def forward(self, batch: StepBatch, kv: KvStore) -> StepOutput:
        """Run all rows of `batch`, write their keys and values into `kv`, and return the requested rows.

        The bits of each output row depend on its sequence's tokens up to that row (in a bidirectional model, on all of them),
        and on nothing else in the batch.
        """
