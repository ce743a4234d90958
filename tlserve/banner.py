"""What a server says of itself when it is ready: model, context, arithmetic, memory, addresses.

Owns the words, and the same facts by name for a log in JSON. Refuses to print: the event goes to the log.
"""

from __future__ import annotations

from collections.abc import Sequence

from tlserve import __version__
from tlserve.assembly import Assembled, AssembledModel
from tlserve.telemetry.logs import LogEvent

MIB = 1 << 20


def start_event(assembled: Assembled, api: Sequence[str], health: Sequence[str]) -> LogEvent:
    """Return what is logged once a server answers; `api` and `health` are the bound addresses."""
    lines = _lines(assembled, api, health)
    return LogEvent("start", lines[0], lines, _fields(assembled, api, health))


def _lines(assembled: Assembled, api: Sequence[str], health: Sequence[str]) -> tuple[str, ...]:
    first, *others = assembled.models
    return (
        f"tlserve {__version__} serves {_title(first)}",
        *_model_lines(first),
        *(line for model in others for line in (f"and {_title(model)}", *_model_lines(model))),
        f"  API        {_urls(api, _scheme(assembled))}",
        f"  health     {_urls(health) or 'not served'}",
    )


def _title(model: AssembledModel) -> str:
    return f"{model.served.model_id}: {model.loaded.description}"


def _model_lines(model: AssembledModel) -> tuple[str, ...]:
    info, settings = model.backend.info(), model.settings
    return (
        f"  context    {info.context_tokens} tokens; {_kept(model)}",
        f"  arithmetic {info.kernels}; answers repeat under {info.system_fingerprint}",
        f"  requests   {settings.max_num_seqs} run at once, {settings.queue_capacity} more may wait",
    )


def _fields(assembled: Assembled, api: Sequence[str], health: Sequence[str]) -> dict[str, object]:
    first, *others = map(_model_fields, assembled.models)
    more: dict[str, object] = {"models": others} if others else {}
    return {"version": __version__, **first, **more, "api": list(api), "health": list(health)}


def _model_fields(model: AssembledModel) -> dict[str, object]:
    info, settings = model.backend.info(), model.settings
    return {
        "model": info.model_id,
        "description": model.loaded.description,
        "context_tokens": info.context_tokens,
        "kv_tokens": _kv_tokens(model),
        "prefix_cache": settings.prefix_cache,
        "kernels": info.kernels,
        "system_fingerprint": info.system_fingerprint,
        "max_num_seqs": settings.max_num_seqs,
        "queue_capacity": settings.queue_capacity,
    }


def _kept(model: AssembledModel) -> str:
    """Say what is kept between steps; of an encoder, which keeps nothing, what it makes."""
    if not model.served.generates:
        return f"makes vectors of {model.backend.info().embedding_size} numbers"
    tokens = _kv_tokens(model)
    size_mib = tokens * model.loaded.model.spec.kv_bytes_per_token // MIB
    return f"keys and values of {tokens} tokens ({size_mib} MiB when full); prefix cache {model.settings.prefix_cache}"


def _kv_tokens(model: AssembledModel) -> int:
    config = model.engine.config
    return config.kv_blocks * config.block_size


def _scheme(assembled: Assembled) -> str:
    return "https" if assembled.settings.tls.certificate else "http"


def _urls(addresses: Sequence[str], scheme: str = "http") -> str:
    return " ".join(address if address.startswith("unix:") else f"{scheme}://{address}" for address in addresses)
