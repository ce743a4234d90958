"""The health port: is the process alive, may it be sent requests, and what are its numbers.

Owns the three routes and their statuses. Refuses to know what makes a server ready: it asks the callables it is handed, at
every request. /healthz says 200 as long as it can say anything, in a drain and with a stuck engine too, so that a pod which
finishes its streams is not killed for it. Source: Kubernetes' liveness and readiness probes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

import attrs

from tlserve.access.request_id import HEADER, choose_request_id
from tlserve.http.exchange import Handler
from tlserve.http.messages import Headers, Request, Response
from tlserve.http.responder import Responder
from tlserve.http.routing import Route, RouteFound, Router, answer_without_endpoint
from tlserve.telemetry.metrics import CONTENT_TYPE

JSON_TYPE = "application/json"
_REMEDY = "the health port has /healthz, /readyz and /metrics"


def make_health_handler(
    *,
    not_ready_reason: Callable[[], str],
    metrics: Callable[[], str],
    new_id: Callable[[], str],
    about: Callable[[], Mapping[str, object]] = dict,
    guard_metrics: Callable[[Headers], None] = lambda _: None,
) -> Handler:
    """Return the handler of GET /healthz, /readyz and /metrics.

    `not_ready_reason` returns "" when requests may come, else why not; `metrics` the exposition; `about` what /healthz says
    besides, such as the kernels. `new_id` names a request that brings no id of its own. `guard_metrics` raises
    `HttpFault` for headers with which /metrics is not to be read.
    """

    def answer_metrics(headers: Headers) -> Response:
        guard_metrics(headers)
        return _answer(200, metrics(), CONTENT_TYPE)

    router = Router[Callable[[Headers], Response]](
        (
            Route("GET", "/healthz", lambda _: _document(200, {"status": "ok", **about()})),
            Route("GET", "/readyz", lambda _: readiness_response(not_ready_reason())),
            Route("GET", "/metrics", answer_metrics),
        )
    )

    async def handle(request: Request, responder: Responder) -> None:
        match = router.match(request.method, request.segments)
        if isinstance(match, RouteFound):
            response = match.route.endpoint(request.headers)
        else:
            response = answer_without_endpoint(match, request, _REMEDY)
        chosen = choose_request_id(request.headers.get(HEADER), new_id)
        await responder.send(attrs.evolve(response, headers=response.headers.adding((HEADER, chosen))))

    return handle


def readiness_response(reason: str) -> Response:
    """Return the answer of /readyz: 200, or 503 with the reason."""
    if reason:
        return _document(503, {"status": "not ready", "reason": reason})
    return _document(200, {"status": "ready"})


def _document(status: int, content: Mapping[str, object]) -> Response:
    return _answer(status, json.dumps(content) + "\n", JSON_TYPE)


def _answer(status: int, text: str, content_type: str) -> Response:
    # A probe must never be answered from a cache on the way.
    return Response(status, text.encode(), [("Content-Type", content_type), ("Cache-Control", "no-store")])
