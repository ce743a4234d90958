"""The API's one handler: which endpoint answers which route, and what is the same for all of them.

Owns the table of routes, the request id, the door that every request passes, and the answers to paths and methods that are
not there. The door is told the row that matched; where none did, it wants a key as well. Refuses to know what the endpoints do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import trio

from tlserve.access.door import Knock
from tlserve.access.request_id import HEADER, choose_request_id
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import Call, answer_call, describe_fault, error_headers
from tlserve.endpoints.routes.chat_completions import chat_completions
from tlserve.endpoints.routes.completions import completions
from tlserve.endpoints.routes.embeddings import embeddings
from tlserve.endpoints.routes.healthz import healthz
from tlserve.endpoints.routes.models import list_models, show_model
from tlserve.endpoints.routes.tokenize import count_input_tokens, detokenize, tokenize
from tlserve.http.exchange import Handler
from tlserve.http.messages import HttpFault, Request, Response
from tlserve.http.responder import Responder
from tlserve.http.routing import Found, Route, Router, WrongMethod
from tlserve.telemetry.request_log import RequestRecord
from tlserve.telemetry.trace_context import TRACEPARENT, TRACESTATE, trace_id_of

ApiEndpoint = Callable[[ApiContext, Call], Awaitable[None]]

ROUTES: Mapping[tuple[str, str], ApiEndpoint] = {
    ("POST", "/v1/chat/completions"): chat_completions,
    ("POST", "/v1/completions"): completions,
    ("POST", "/v1/embeddings"): embeddings,
    ("POST", "/v1/chat/completions/input_tokens"): count_input_tokens,
    ("POST", "/v1/tokenize"): tokenize,
    ("POST", "/v1/detokenize"): detokenize,
    ("GET", "/v1/models"): list_models,
    ("GET", "/v1/models/{id+}"): show_model,
    ("GET", "/healthz"): healthz,
}


def make_api_handler(api: ApiContext) -> Handler:
    """Return the handler that serves `ROUTES`."""

    def bind(endpoint: Callable[[Call], Awaitable[None]]) -> Handler:
        async def handle(request: Request, responder: Responder) -> None:
            await answer_call(_open_call(api, request, responder), endpoint, api.log)

        return handle

    def let_in(route: str, endpoint: ApiEndpoint) -> Callable[[Call], Awaitable[None]]:
        return partial(_let_in, api, route, endpoint)

    router = Router(
        Route(method, pattern, bind(let_in(f"{method} {pattern}", endpoint)))
        for (method, pattern), endpoint in ROUTES.items()
    )

    async def not_there(_api: ApiContext, call: Call) -> None:
        await _answer_no_route(router, call)

    async def no_route(call: Call) -> None:
        if not await _answer_preflight(api, router, call):
            await _let_in(api, "", not_there, call)

    nowhere = bind(no_route)

    async def handle(request: Request, responder: Responder) -> None:
        found = isinstance(router.match(request.method, request.segments), Found)
        await (router if found else nowhere)(request, responder)

    return handle


def _open_call(api: ApiContext, request: Request, responder: Responder) -> Call:
    chosen = choose_request_id(request.headers.get(HEADER), api.new_id)
    call = Call(request=request, responder=responder, id=chosen, started_s=trio.current_time())
    call.extra_headers.extend(api.cors.headers(request.headers))
    _open_span(api, call)
    return call


def _open_span(api: ApiContext, call: Call) -> None:
    """Begin the call's span, if there is a tracer; note the trace that it belongs to."""
    headers = call.request.headers
    given = headers.get(TRACEPARENT) if len(headers.get_all(TRACEPARENT)) == 1 else None
    trace_id = trace_id_of(given)
    if api.tracer is not None:
        call.span = api.tracer.start(given, ",".join(headers.get_all(TRACESTATE)) or None, api.now_s())
        trace_id = call.span.trace_id
    if trace_id is not None:
        call.notes["trace_id"] = trace_id


async def _let_in(api: ApiContext, route: str, endpoint: ApiEndpoint, call: Call) -> None:
    """Run `endpoint` if the door lets the request in; its permit is given back however it ends."""
    call.entry = api.door.enter(_knock(api, route, call))
    if call.entry.key_name is not None:
        call.notes["key"] = call.entry.key_name
    try:
        await endpoint(api, call)
    finally:
        call.entry.leave(call.used_tokens(), trio.current_time())


def _knock(api: ApiContext, route: str, call: Call) -> Knock:
    request = call.request
    return Knock(
        route=route,
        generates=request.method == "POST",
        headers=request.headers,
        peer=request.peer,
        now_s=trio.current_time(),
        wall_s=api.now_s(),
    )


async def _answer_preflight(api: ApiContext, router: Router, call: Call) -> bool:
    """Answer the question of a web page's browser, which brings no key; False if this is no such question."""
    methods = _methods_there(router, call.request)
    headers = api.cors.preflight(call.request.method, call.request.headers, methods)
    if headers is None:
        return False
    await call.send(b"", 204, headers)
    return True


async def _answer_no_route(router: Router, call: Call) -> None:
    """Answer OPTIONS with Allow; raise 405 or 404 for the rest."""
    request = call.request
    methods = _methods_there(router, request)
    if not methods:
        raise HttpFault(
            404,
            f"there is nothing at {request.path[:100]!a}; the API is below /v1, and /readyz and /metrics are on the health port",
        )
    allow = (("Allow", ", ".join(methods)),)
    if request.method == "OPTIONS":
        await call.send(b"", 204, allow)
    else:
        raise HttpFault(405, f"{request.method[:20]} is not served here; send one of {allow[0][1]}", None, allow)


def _methods_there(router: Router, request: Request) -> tuple[str, ...]:
    """Return the methods of the path, none if it is not there; `OPTIONS *` asks for those of the server."""
    if request.method == "OPTIONS" and request.segments == ("*",):
        return tuple(sorted({method for method, _ in ROUTES} | {"HEAD", "OPTIONS"}))
    match = router.match(request.method, request.segments)
    return match.allow if isinstance(match, WrongMethod) else ()


def make_fault_renderer(
    new_id: Callable[[], str], log: Callable[[RequestRecord], None] | None = None
) -> Callable[[HttpFault, Request | None], Response]:
    """Return what shows the faults that HTTP finds before a handler runs, in the shape of the API's errors.

    `log` gets a record of each fault that no handler has seen, and so logged: bytes that are not a request.
    """

    def render(fault: HttpFault, request: Request | None) -> Response:
        answer = describe_fault(fault)
        chosen = choose_request_id(None if request is None else request.headers.get(HEADER), new_id)
        if request is None and log is not None:
            log(RequestRecord(request_id=chosen, method="-", path="-", status=fault.status, error=answer.kind))
        return Response(fault.status, answer.document(), (*error_headers(answer, fault), (HEADER, chosen)))

    return render
