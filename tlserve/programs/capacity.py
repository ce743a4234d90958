"""How many blocks of keys and values a server keeps: the memory setting, or the machine's, turned into a count.

Owns the arithmetic alone; what the machine has is an argument.
"""

from __future__ import annotations

from tlserve.config.settings import EngineSettings
from tlserve.errors import SettingsError
from tlserve.kernels.interface import ModelSpec

SHARE_OF_MEMORY = 4
"""One part in this many of what is available goes to keys and values, unless the setting says otherwise."""


def plan_kv_blocks(settings: EngineSettings, spec: ModelSpec, available_bytes: int) -> int:
    """Return the number of blocks; raises SettingsError if `kv_memory_bytes` does not hold a single one."""
    context_tokens = min(settings.context_tokens or spec.context_tokens, spec.context_tokens)
    blocks_per_context = -(-context_tokens // settings.block_size)
    most = blocks_per_context * settings.max_num_seqs
    bytes_per_block = spec.kv_bytes_per_token * settings.block_size
    if bytes_per_block == 0:  # a model without attention keeps nothing, and the pool only counts
        return most
    if settings.kv_memory_bytes == 0:
        return max(1, min(most, available_bytes // SHARE_OF_MEMORY // bytes_per_block))
    if settings.kv_memory_bytes < bytes_per_block:
        raise SettingsError(
            (
                f"engine.kv_memory_bytes = {settings.kv_memory_bytes} holds no block of {settings.block_size} tokens: "
                f"one takes {bytes_per_block} bytes in this model; give more, or 0 to let the server decide",
            )
        )
    return min(most, settings.kv_memory_bytes // bytes_per_block)
