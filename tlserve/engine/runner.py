"""The one place that calls the model.

Owns the model's KV store, and measures the time of the forward pass. Knows no sequences: a batch in, arrays out.
"""

from __future__ import annotations

from time import perf_counter

from tlserve.kernels.interface import Model, StepBatch, StepOutput


class Runner:
    """A model with a KV store of `blocks` blocks of `block_size` positions."""

    def __init__(self, model: Model, blocks: int, block_size: int) -> None:
        self.spec = model.spec
        self.forward_s = 0.0
        self._model = model
        self._kv = model.new_kv_store(blocks, block_size)

    def forward(self, batch: StepBatch) -> StepOutput:
        """Run the forward pass of one step; raises what the model raises."""
        started = perf_counter()
        output = self._model.forward(batch, self._kv)
        self.forward_s += perf_counter() - started
        return output
