"""What all endpoints of one server share: the models, the door, the limits, and the sources of randomness and time.

Owns this bundle, so that an endpoint takes two arguments, this and the exchange.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from tlserve.access.cors import Cors
from tlserve.access.door import Door
from tlserve.access.pages import PageGuard
from tlserve.chat.served_model import Catalogue
from tlserve.config.tables.network import HttpSettings
from tlserve.endpoints.offload import Offload
from tlserve.endpoints.open_requests import OpenRequests
from tlserve.telemetry.request_log import RequestRecord, log_request
from tlserve.telemetry.tracing import Tracer

if TYPE_CHECKING:
    from tlserve.endpoints.responses.kept import KeptResponses


def _draw_seed() -> int:
    return secrets.randbits(63)


def new_request_id() -> str:
    """Return an id that cannot be guessed."""
    return secrets.token_hex(12)  # 96 random bits: unique, and short enough to read in a log line


@attrs.frozen(kw_only=True)
class ApiContext:
    """What an endpoint needs in addition to the exchange. `draw_seed` returns seeds that a client can send back (63 bits).

    `kept` are the responses of earlier requests; None: this server keeps none. `open` are the requests that are
    being answered.
    """

    catalogue: Catalogue
    door: Door = attrs.field(factory=Door)
    cors: Cors = attrs.field(factory=Cors)
    pages: PageGuard = attrs.field(factory=PageGuard)
    settings: HttpSettings = attrs.field(factory=HttpSettings)
    offload: Offload = attrs.field(factory=Offload)
    draw_seed: Callable[[], int] = _draw_seed
    new_id: Callable[[], str] = new_request_id
    now_s: Callable[[], float] = time.time
    log: Callable[[RequestRecord], None] = log_request
    tracer: Tracer | None = None
    kept: KeptResponses | None = None
    open: OpenRequests = attrs.field(factory=OpenRequests)
