"""What all endpoints of one server share: the models, who may ask, the limits, and where chance and time come from.

Owns the bundle, so that an endpoint takes two arguments: this and the exchange.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable

import attrs

from tlserve.access.cors import Cors
from tlserve.access.door import Door
from tlserve.chat.served_model import Catalogue
from tlserve.config.settings import HttpSettings
from tlserve.endpoints.offload import Offload
from tlserve.telemetry.request_log import RequestRecord, log_request
from tlserve.telemetry.tracing import Tracer


def _draw_seed() -> int:
    return secrets.randbits(63)


def new_request_id() -> str:
    """Return an id that nobody can guess."""
    return secrets.token_hex(12)  # 96 random bits: unique for ever, and short enough to read in a log line


@attrs.frozen(kw_only=True)
class ApiContext:
    """What an endpoint needs besides the request. `draw_seed` gives seeds that a client can send back (63 bits)."""

    catalogue: Catalogue
    door: Door = attrs.field(factory=Door)
    cors: Cors = attrs.field(factory=Cors)
    settings: HttpSettings = attrs.field(factory=HttpSettings)
    offload: Offload = attrs.field(factory=Offload)
    draw_seed: Callable[[], int] = _draw_seed
    new_id: Callable[[], str] = new_request_id
    now_s: Callable[[], float] = time.time
    log: Callable[[RequestRecord], None] = log_request
    tracer: Tracer | None = None
