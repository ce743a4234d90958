"""The bigram: the logits of a row are the table row of its token. No attention, so no keys and no values.

This module has the model and its own `config.json`. It is a complete `kernels.interface.Model`, small enough to follow by hand:
the built-in `succ` continues "a" with "bcd".
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tlserve.errors import ModelRefused
from tlserve.kernels.interface import KvStore, ModelSpec, NoKvStore, StepBatch, StepOutput
from tlserve.model.loaded_model import LoadedModel, LoadOptions, ModelFront
from tlserve.model.sidecar_files import read_json, read_sidecar

MAX_VOCABULARY = 4096


class BigramModel:
    """A `kernels.interface.Model` over one table of logits; the hidden state of a row is its table row."""

    def __init__(self, table: NDArray[np.float32], context_tokens: int) -> None:
        self._table = np.ascontiguousarray(
            table, dtype=np.float32
        )  # (V, V): row of the last token -> logits of the next
        self._spec = ModelSpec(
            architecture="bigram",
            vocabulary_size=table.shape[1],
            hidden_size=table.shape[1],
            context_tokens=context_tokens,
            kv_bytes_per_token=0,
            kernels="reference (table look-up)",
            numerics=hashlib.blake2b(b"bigram" + self._table.tobytes(), digest_size=8).hexdigest(),
        )

    @property
    def spec(self) -> ModelSpec:
        """What the engine must know of the model."""
        return self._spec

    def new_kv_store(self, blocks: int, block_size: int) -> KvStore:
        """Return a store of `blocks` blocks that holds no memory."""
        return NoKvStore(blocks=blocks, block_size=block_size)

    def forward(self, batch: StepBatch, kv: KvStore) -> StepOutput:  # noqa: ARG002 - the interface's; nothing is stored
        """Look up the table row of every requested row."""
        return StepOutput(
            logits=self._table[batch.tokens[batch.logit_rows]], hidden=self._table[batch.tokens[batch.hidden_rows]]
        )


def successor_table(vocabulary_size: int, offset: int, logit: float) -> NDArray[np.float32]:
    """Make the (V, V) float32 table in which token i is followed by token (i + offset) % V with `logit`, else with 0."""
    ids = np.arange(vocabulary_size)
    table = np.zeros((vocabulary_size, vocabulary_size), np.float32)
    table[ids, (ids + offset) % vocabulary_size] = logit
    return table


def read_bigram_model(path: Path, options: LoadOptions) -> LoadedModel:
    """Read the directory of a bigram: its config.json and the files next to it; raises `ModelRefused`."""
    config = read_json(path / "config.json")
    model = bigram_from_config(config, options.context_tokens)
    sidecar = read_sidecar(path, model.spec.vocabulary_size)
    front = ModelFront(
        metadata={"tokenizer.ggml.model": "bytes"},
        chat_template=sidecar.chat_template,
        tool_template=sidecar.tool_template,
        eos_ids=sidecar.eos_ids,
        bos_id=None,
        context_tokens=model.spec.context_tokens,
        name=path.name,
        description=f"{path.name} (bigram: {str(config.get('description', ''))[:80]})",
        default_sampling=sidecar.sampling,
        notes=sidecar.notes,
    )
    return LoadedModel.of(front, model, 4 * model.spec.vocabulary_size**2)


def bigram_from_config(config: Mapping[str, object], context_tokens: int = 0) -> BigramModel:
    """Make the model that a bigram's `config.json` describes; raises `ModelRefused` where a value is not usable.

    `context_tokens` above 0 replaces the file's, and must not exceed it.
    """
    vocabulary = _integer(config, "vocab_size", 2, MAX_VOCABULARY)
    limit = _integer(config, "context_tokens", 1, 1 << 20)
    if context_tokens > limit:
        raise ModelRefused(f"context_tokens {context_tokens} is more than the model's {limit}")
    offset = _integer(config, "successor_offset", 0, vocabulary - 1)
    logit = config.get("successor_logit")
    if not isinstance(logit, (int, float)) or isinstance(logit, bool) or not abs(logit) <= 1000:
        raise ModelRefused("config.json: successor_logit must be a number between -1000 and 1000")
    return BigramModel(successor_table(vocabulary, offset, float(logit)), context_tokens or limit)


def _integer(config: Mapping[str, object], name: str, low: int, high: int) -> int:
    """Return the whole number `name` of `config`, between `low` and `high`."""
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ModelRefused(f"config.json: {name} must be a whole number between {low} and {high}")
    return value
