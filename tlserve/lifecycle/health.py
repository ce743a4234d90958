"""The health port: whether the process is alive, whether it is ready for requests, and its metrics.

Owns the three routes and their statuses. Does not know what makes a server ready: it calls its arguments at every request.
/healthz returns 200 as long as it can answer, also in a drain and with a stuck engine, so that a pod is not killed while it
finishes its streams. Source: Kubernetes' liveness and readiness probes.
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
from tlserve.telemetry.catalogue import CONTENT_TYPE

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

    `not_ready_reason` returns "" if the server is ready, else the reason; `metrics` returns the exposition; `about` returns
    further members of /healthz, such as the kernels. `new_id` returns an id for a request without one. `guard_metrics` raises
    `HttpFault` for headers that do not give access to /metrics.
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
    # no cache on the way must answer a probe
    return Response(status, text.encode(), [("Content-Type", content_type), ("Cache-Control", "no-store")])
