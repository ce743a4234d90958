"""What a server logs when it is ready: a description of its models, and its addresses.

Owns the words, and the same facts by name for a log in JSON. The caller logs the event.
"""

from __future__ import annotations

from collections.abc import Sequence

from tlserve import __version__
from tlserve.programs.hosted_model import HostedModel
from tlserve.programs.server_objects import Assembled
from tlserve.telemetry.logs import LogEvent


def start_event(assembled: Assembled, api: Sequence[str], health: Sequence[str]) -> LogEvent:
    """Return the event to log once a server answers; `api` and `health` are the bound addresses."""
    lines = _lines(assembled, api, health)
    return LogEvent("start", lines[0], lines, _fields(assembled, api, health))


def _lines(assembled: Assembled, api: Sequence[str], health: Sequence[str]) -> tuple[str, ...]:
    first, *others = assembled.models
    return (
        f"tlserve {__version__} serves {_title(first)}",
        *first.lines,
        *(line for model in others for line in (f"and {_title(model)}", *model.lines)),
        f"  API        {_urls(api, _scheme(assembled))}",
        f"  health     {_urls(health) or 'not served'}",
    )


def _title(model: HostedModel) -> str:
    return f"{model.served.model_id}: {model.description}"


def _fields(assembled: Assembled, api: Sequence[str], health: Sequence[str]) -> dict[str, object]:
    first, *others = map(_model_fields, assembled.models)
    more: dict[str, object] = {"models": others} if others else {}
    return {"version": __version__, **first, **more, "api": list(api), "health": list(health)}


def _model_fields(model: HostedModel) -> dict[str, object]:
    return {"model": model.served.model_id, "description": model.description, **model.facts}


def _scheme(assembled: Assembled) -> str:
    return "https" if assembled.settings.tls.certificate else "http"


def _urls(addresses: Sequence[str], scheme: str = "http") -> str:
    return " ".join(address if address.startswith("unix:") else f"{scheme}://{address}" for address in addresses)
