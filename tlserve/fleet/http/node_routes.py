"""The node's routes: a call of the fleet as a POST below /v1/internal, answered beside the API.

Owns the paths and what HTTP says of a call: 200 is an answer of the node, be it one of our errors; every other status means that
the call did not reach it. Refuses to know keys (it is handed a guard) and what the calls mean.
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
    """Return the handler of everything below `PREFIX`; `guard` raises `HttpFault` for a request that brings no key."""

    async def handle(request: Request, responder: Responder) -> None:
        try:
            guard(request.headers)
            name = _call_of(request)
            answer = await _answer(node, name, await request.read_body())
        except HttpFault as fault:
            log.warning(
                "a call of the fleet from %s was not answered: %d, %s", request.peer, fault.status, fault.message
            )
            raise
        await responder.send(Response(200, answer, [CONTENT_TYPE]))

    return handle


def beside(api: Handler, node: Handler) -> Handler:
    """Return the handler that gives what is below `PREFIX` to `node`, and the rest to `api`."""

    async def handle(request: Request, responder: Responder) -> None:
        internal = request.segments[: len(_SEGMENTS)] == _SEGMENTS
        await (node if internal else api)(request, responder)

    return handle


def _call_of(request: Request) -> str:
    """Return the name of the call; raises `HttpFault` 404 or 405."""
    name = request.segments[-1]
    if request.segments != (*_SEGMENTS, name) or name not in CALLS:
        raise HttpFault(404, "there is no such call of the fleet")
    if request.method != "POST":
        raise HttpFault(405, "the calls of the fleet are POST requests", None, [("Allow", "POST")])
    return name


async def _answer(node: NodeLink, name: str, body: bytes) -> bytes:
    try:
        return await answer_call(node, name, body)
    except WireRefused as refused:
        raise HttpFault(400, refused.message) from None
