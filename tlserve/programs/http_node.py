"""A server as a node of a fleet: the routes that heads use, in addition to its API.

Owns what the table [fleet] means for a server: whether it is a node, which key its routes require, and what is refused at the
start. Runs nothing; `tlserve.programs.server` does.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tlserve.access.credentials import authenticate
from tlserve.access.exposure import is_local
from tlserve.access.keys import KeyRing, digest_of, global_key
from tlserve.access.pages import PageGuard
from tlserve.config.settings import FleetSettings, Settings
from tlserve.errors import SettingsError
from tlserve.generation import Backend
from tlserve.http.exchange import Handler
from tlserve.http.messages import Headers

if TYPE_CHECKING:
    from tlserve.fleet.node.service import NodeService


def check_node(settings: Settings, bound: Sequence[str], keys: KeyRing | None) -> None:
    """Refuse a node that other machines reach without a key, or whose key is an API key; raises `SettingsError`."""
    if not settings.fleet.internal:
        return
    refusals = [*_exposed(settings.fleet, bound), *_shared_key(settings.fleet, keys)]
    if settings.http.handover_socket:
        refusals.append(
            "http.handover_socket: a node cannot be replaced in place; leave it out, and stop the node: it drains"
        )
    if settings.engine.load != "always":
        refusals.append(f"engine.load = {settings.engine.load!r}: the model of a node is always loaded; leave it out")
    if settings.models:
        refusals.append("fleet.internal: a node serves one model, that of [engine]; remove the [[models]] tables")
    if refusals:
        raise SettingsError(tuple(refusals))


def _exposed(fleet: FleetSettings, bound: Sequence[str]) -> list[str]:
    exposed = [address for address in bound if not is_local(address)]
    if fleet.internal_key or not exposed:
        return []
    return [
        f"fleet.internal: {exposed[0]} can be reached from other machines, and the fleet's routes require no key: "
        "set TL_FLEET__INTERNAL_KEY, or listen on 127.0.0.1"
    ]


def _shared_key(fleet: FleetSettings, keys: KeyRing | None) -> list[str]:
    """Keep the two keys apart: an API key has limits, which the routes of the fleet bypass."""
    same = (
        [key.name for key in keys.keys if hmac.compare_digest(key.digest, digest_of(fleet.internal_key))]
        if keys
        else []
    )
    return [f"fleet.internal_key is also the API key {name!r}: use a different key" for name in same]


def make_node(settings: Settings, name: str, backend: Backend) -> NodeService | None:
    """Return the node over `backend`, or None if the settings do not ask for one."""
    if not settings.fleet.internal:
        return None
    from tlserve.fleet.node.service import NodeLimits, NodeService  # most servers are not nodes

    limits = NodeLimits(lease_s=settings.fleet.lease_ms / 1000)
    return NodeService(backend, node=name, slots=settings.engine.max_num_seqs, limits=limits)


def with_node_routes(api: Handler, node: NodeService, fleet: FleetSettings, pages: PageGuard) -> Handler:
    """Return the handler of the API together with the routes of `node`, which require the fleet's key."""
    from tlserve.fleet.http.node_routes import add_node_routes, make_node_handler

    return add_node_routes(api, make_node_handler(node, _guard(fleet.internal_key, pages)))


def _guard(key: str, pages: PageGuard) -> Callable[[Headers], None]:
    ring = KeyRing((global_key(key),)) if key else None

    def guard(headers: Headers) -> None:
        if ring is None:
            pages.check(headers)
        else:
            authenticate(ring, headers, time.time())

    return guard
