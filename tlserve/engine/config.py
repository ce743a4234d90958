"""The engine's own settings, for the scheduler, the KV blocks, speculation and the sampler.

Owns `EngineConfig` and its bounds. Knows nothing of files, the environment and memory sizes: `tlserve.config` reads the
settings, and `tlserve.programs.local_models` turns bytes into blocks. None of these values changes the bits of an answer.
"""

from __future__ import annotations

import attrs
from attrs.validators import ge, in_


@attrs.frozen(kw_only=True)
class EngineConfig:
    """How the engine schedules. Raises ValueError for a value out of range.

    `prefill_chunk` bounds the prompt tokens of all sequences together in one step; 0: whole prompts. `max_waiting` is the
    number of requests that may wait in addition to the `max_num_seqs` that run. `context_tokens` 0 is the model's own limit.
    `sampler` "auto" is the native one if it was built; `sampler_threads` 0: one per core.
    """

    max_num_seqs: int = attrs.field(default=32, validator=ge(1))
    max_waiting: int = attrs.field(default=128, validator=ge(0))
    prefill_chunk: int = attrs.field(default=256, validator=ge(0))
    block_size: int = attrs.field(default=16, validator=ge(1))
    kv_blocks: int = attrs.field(default=1024, validator=ge(1))
    prefix_cache: str = attrs.field(default="radix", validator=in_(("none", "hash", "radix")))
    speculative: str = attrs.field(default="none", validator=in_(("none", "prompt_lookup")))
    speculative_tokens: int = attrs.field(default=4, validator=ge(1))
    context_tokens: int = attrs.field(default=0, validator=ge(0))
    sampler: str = attrs.field(default="auto", validator=in_(("auto", "numpy")))
    sampler_threads: int = attrs.field(default=0, validator=ge(0))

    @property
    def max_unfinished(self) -> int:
        """Return the largest number of generation requests that run or wait."""
        return self.max_num_seqs + self.max_waiting

    @property
    def kv_tokens(self) -> int:
        """Return the number of tokens whose keys and values fit into the blocks."""
        return self.kv_blocks * self.block_size

    def context_limit(self, model_tokens: int) -> int:
        """Return the length of the longest sequence: the least of the model's context, the setting, and the KV blocks."""
        asked = self.context_tokens or model_tokens
        return min(asked, model_tokens, self.kv_tokens)
