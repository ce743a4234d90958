"""What a server says of itself when it is ready: model, context, arithmetic, memory, addresses.

Owns the words, and the same facts by name for a log in JSON. Refuses to print: the event goes to the log.
"""

from __future__ import annotations

from collections.abc import Sequence

from tlserve import __version__
from tlserve.assembly import Assembled
from tlserve.telemetry.logs import LogEvent

MIB = 1 << 20


def start_event(assembled: Assembled, api: Sequence[str], health: Sequence[str]) -> LogEvent:
    """Return what is logged once a server answers; `api` and `health` are the bound addresses."""
    lines = _lines(assembled, api, health)
    return LogEvent("start", lines[0], lines, _fields(assembled, api, health))


def _lines(assembled: Assembled, api: Sequence[str], health: Sequence[str]) -> tuple[str, ...]:
    info, settings = assembled.backend.info(), assembled.settings.engine
    return (
        f"tlserve {__version__} serves {info.model_id}: {assembled.loaded.description}",
        f"  context    {info.context_tokens} tokens; {_kv(assembled)}; prefix cache {settings.prefix_cache}",
        f"  arithmetic {info.kernels}; answers repeat under {info.system_fingerprint}",
        f"  requests   {settings.max_num_seqs} run at once, {settings.queue_capacity} more may wait",
        f"  API        {_urls(api, _scheme(assembled))}",
        f"  health     {_urls(health) or 'not served'}",
    )


def _fields(assembled: Assembled, api: Sequence[str], health: Sequence[str]) -> dict[str, object]:
    info, settings = assembled.backend.info(), assembled.settings.engine
    return {
        "version": __version__,
        "model": info.model_id,
        "description": assembled.loaded.description,
        "context_tokens": info.context_tokens,
        "kv_tokens": _kv_tokens(assembled),
        "prefix_cache": settings.prefix_cache,
        "kernels": info.kernels,
        "system_fingerprint": info.system_fingerprint,
        "max_num_seqs": settings.max_num_seqs,
        "queue_capacity": settings.queue_capacity,
        "api": list(api),
        "health": list(health),
    }


def _kv(assembled: Assembled) -> str:
    tokens = _kv_tokens(assembled)
    size_mib = tokens * assembled.loaded.model.spec.kv_bytes_per_token // MIB
    return f"keys and values of {tokens} tokens ({size_mib} MiB when full)"


def _kv_tokens(assembled: Assembled) -> int:
    config = assembled.engine.config
    return config.kv_blocks * config.block_size


def _scheme(assembled: Assembled) -> str:
    return "https" if assembled.settings.tls.certificate else "http"


def _urls(addresses: Sequence[str], scheme: str = "http") -> str:
    return " ".join(address if address.startswith("unix:") else f"{scheme}://{address}" for address in addresses)
