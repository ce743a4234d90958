"""What a server says of itself when it is ready: model, context, arithmetic, memory, addresses.

Owns the words. Refuses to print: the lines go to the log.
"""

from __future__ import annotations

from collections.abc import Sequence

from tlserve import __version__
from tlserve.assembly import Assembled

MIB = 1 << 20


def banner_lines(assembled: Assembled, api: Sequence[str], health: Sequence[str]) -> tuple[str, ...]:
    """Return the lines of the start banner."""
    info, settings = assembled.backend.info(), assembled.settings.engine
    return (
        f"tlserve {__version__} serves {info.model_id}: {assembled.loaded.description}",
        f"  context    {info.context_tokens} tokens; {_kv(assembled)}; prefix cache {settings.prefix_cache}",
        f"  arithmetic {info.kernels}; answers repeat under {info.system_fingerprint}",
        f"  requests   {settings.max_num_seqs} run at once, {settings.queue_capacity} more may wait",
        f"  API        {_urls(api)}",
        f"  health     {_urls(health) or 'not served'}",
    )


def _kv(assembled: Assembled) -> str:
    config = assembled.engine.config
    tokens = config.kv_blocks * config.block_size
    size_mib = tokens * assembled.loaded.model.spec.kv_bytes_per_token // MIB
    return f"keys and values of {tokens} tokens ({size_mib} MiB when full)"


def _urls(addresses: Sequence[str]) -> str:
    return " ".join(f"http://{address}" for address in addresses)
