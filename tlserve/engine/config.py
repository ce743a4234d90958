"""The engine's own settings: what the scheduler, the KV blocks and speculation need to know.

Owns `EngineConfig` and its bounds. Refuses to know files, the environment and memory sizes: `tlserve.config` reads the
settings, and the composition root turns bytes into blocks. None of these values may change the bits of an answer.
"""

from __future__ import annotations

import attrs
from attrs.validators import ge, in_


@attrs.frozen(kw_only=True)
class EngineConfig:
    """How the engine schedules. Raises ValueError for a value out of range.

    `prefill_chunk` bounds the prompt tokens of all sequences together in one step; 0: whole prompts. `max_waiting` is the
    number of requests that may wait beyond the `max_num_seqs` that run. `context_tokens` 0 is the model's own. `sampler`
    "auto" is the native one where it was built; `sampler_threads` 0: one per core.
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
    def kv_tokens(self) -> int:
        """Return how many tokens' keys and values there is room for."""
        return self.kv_blocks * self.block_size

    def context_limit(self, model_tokens: int) -> int:
        """Return the longest sequence that is served: the model's context, the setting, and what the KV blocks hold."""
        asked = self.context_tokens or model_tokens
        return min(asked, model_tokens, self.kv_tokens)
