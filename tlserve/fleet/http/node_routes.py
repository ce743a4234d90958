"""The node's routes: a call of the fleet is a POST below /v1/internal, on the server that also has the API.

Owns the paths and the statuses: 200 is an answer of the node, even if it is one of our errors; every other status means that
the call did not reach the node. Knows no keys (a guard checks them) and not what the calls mean.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from tlserve.fleet.link import NodeLink
from tlserve.fleet.remote_node import CALLS, answer_call
from tlserve.fleet.wire import WireRefused
from tlserve.http.exchange import Handler
from tlserve.http.messages import Headers, HttpFault, Request, Response
from tlserve.http.responder import Responder

log = logging.getLogger("tlserve.fleet")

PREFIX = "/v1/internal"
CONTENT_TYPE = ("Content-Type", "application/vnd.msgpack")

_SEGMENTS = tuple(PREFIX.split("/"))


def make_node_handler(node: NodeLink, guard: Callable[[Headers], None]) -> Handler:
    """Return the handler of everything below `PREFIX`; `guard` raises `HttpFault` for a request without a valid key."""

    async def handle(request: Request, responder: Responder) -> None:
        try:
            guard(request.headers)
            name = _call_of(request)
            answer = await _answer(node, name, await request.read_body())
        except HttpFault as fault:
            log.warning("a fleet call from %s was refused: %d, %s", request.peer, fault.status, fault.message)
            raise
        await responder.send(Response(200, answer, [CONTENT_TYPE]))

    return handle


def add_node_routes(api: Handler, node: Handler) -> Handler:
    """Return the handler that passes requests below `PREFIX` to `node`, and the others to `api`."""

    async def handle(request: Request, responder: Responder) -> None:
        internal = request.segments[: len(_SEGMENTS)] == _SEGMENTS
        await (node if internal else api)(request, responder)

    return handle


def _call_of(request: Request) -> str:
    """Return the name of the call; raises `HttpFault` 404 or 405."""
    name = request.segments[-1]
    if request.segments != (*_SEGMENTS, name) or name not in CALLS:
        raise HttpFault(404, "there is no such fleet call")
    if request.method != "POST":
        raise HttpFault(405, "fleet calls are POST requests", None, [("Allow", "POST")])
    return name


async def _answer(node: NodeLink, name: str, body: bytes) -> bytes:
    try:
        return await answer_call(node, name, body)
    except WireRefused as refused:
        raise HttpFault(400, refused.message) from None
