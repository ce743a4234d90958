"""The API's one handler: which endpoint answers which route, and the steps that all of them share.

Owns the table of routes, the request id, and the door that every request passes. The door is told which row matched; a request
that no row matches needs a key as well. Endpoints are imported when they are needed, because a start needs one of them. Does not
know what the endpoints do.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from typing import cast

import trio

from tlserve.access.cors import Fields
from tlserve.access.door import Knock
from tlserve.access.request_id import HEADER, choose_request_id
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange, describe_fault, error_headers, run_endpoint
from tlserve.endpoints.families import OPENAI, family_of
from tlserve.endpoints.open_requests import OpenRequest
from tlserve.http.exchange import Handler
from tlserve.http.messages import HttpFault, Request, Response
from tlserve.http.responder import Responder
from tlserve.http.routing import Route, RouteFound, Router, UnknownPath, WrongMethod, answer_without_endpoint
from tlserve.telemetry.request_log import RequestRecord
from tlserve.telemetry.tracing import TRACEPARENT, TRACESTATE, trace_id_of

ApiEndpoint = Callable[[ApiContext, ApiExchange], Awaitable[None]]
Match = RouteFound[str] | WrongMethod | UnknownPath

ROUTES: Mapping[tuple[str, str], str] = {
    ("POST", "/v1/chat/completions"): "chat_completions:chat_completions",
    ("POST", "/v1/completions"): "completions:completions",
    ("POST", "/infill"): "infill:infill",
    ("POST", "/v1/embeddings"): "embeddings:embeddings",
    ("POST", "/v1/rerank"): "scores:rerank",
    ("POST", "/v2/rerank"): "scores:rerank",
    ("POST", "/rerank"): "scores:rerank",
    ("POST", "/v1/score"): "scores:score",
    ("POST", "/score"): "scores:score",
    ("POST", "/v1/classify"): "scores:classify",
    ("POST", "/classify"): "scores:classify",
    ("POST", "/embed"): "embeddings:embed_for_tei",
    ("POST", "/v1/chat/completions/input_tokens"): "tokenize:count_input_tokens",
    ("POST", "/v1/responses"): "responses:responses",
    ("POST", "/v1/responses/input_tokens"): "responses:count_response_tokens",
    ("GET", "/v1/responses/{id}"): "kept_responses:show_response",
    ("DELETE", "/v1/responses/{id}"): "kept_responses:delete_response",
    ("POST", "/v1/responses/{id}/cancel"): "kept_responses:cancel_response",
    ("GET", "/v1/responses/{id}/input_items"): "kept_responses:list_input_items",
    ("POST", "/v1/messages"): "messages:messages",
    ("POST", "/v1/messages/count_tokens"): "messages:count_tokens",
    ("POST", "/v1/tokenize"): "tokenize:tokenize",
    ("POST", "/v1/detokenize"): "tokenize:detokenize",
    ("POST", "/tokenize"): "tokenize:tokenize",
    ("POST", "/detokenize"): "tokenize:detokenize_for_others",
    ("POST", "/api/chat"): "ollama_chat:ollama_chat",
    ("POST", "/api/generate"): "ollama_chat:ollama_generate",
    ("POST", "/api/embed"): "ollama_models:embed",
    ("POST", "/api/embeddings"): "ollama_models:embed_one",
    ("POST", "/api/show"): "ollama_models:show",
    ("GET", "/api/tags"): "ollama_models:tags",
    ("GET", "/api/ps"): "ollama_models:running",
    ("GET", "/api/version"): "ollama_models:ollama_version",
    ("GET", "/v1/models"): "models:list_models",
    ("GET", "/v1/models/{id+}"): "models:show_model",
    ("GET", "/v1/requests"): "server.open_requests:list_requests",
    ("GET", "/v1/requests/{id}"): "server.open_requests:show_request",
    ("DELETE", "/v1/requests/{id}"): "server.open_requests:cancel_request",
    ("GET", "/healthz"): "server.healthz:healthz",
    ("GET", "/health"): "server.status:health",
    ("GET", "/version"): "server.status:version",
    ("GET", "/load"): "server.status:load",
    ("GET", "/props"): "server.props:props",
    ("POST", "/apply-template"): "server.props:apply_template",
    ("GET", "/tokenizer_info"): "server.props:tokenizer_info",
}
"""The endpoint of each method and path: a module of `tlserve.endpoints.routes`, and its function there."""

USUAL_ENDPOINT = ROUTES["POST", "/v1/chat/completions"]
"""The endpoint that most clients request first."""

NO_ROUTE = ""
_REMEDY = "the API is below /v1, and /readyz and /metrics are on the health port"


@functools.cache
def load_endpoint(name: str) -> ApiEndpoint:
    """Return an endpoint by its name in `ROUTES`; its module is imported when it is needed first."""
    module, _, function = name.partition(":")
    return cast("ApiEndpoint", getattr(import_module(f"tlserve.endpoints.routes.{module}"), function))


def load_endpoints() -> None:
    """Import all endpoints, so that no later request waits for one; for a worker thread."""
    for name in ROUTES.values():
        load_endpoint(name)


def make_api_handler(api: ApiContext) -> Handler:
    """Return the handler that serves `ROUTES`."""
    router = Router(Route(method, pattern, endpoint) for (method, pattern), endpoint in ROUTES.items())

    async def handle(request: Request, responder: Responder) -> None:
        match = router.match(request.method, request.segments)
        await run_endpoint(_open_exchange(api, request, responder), partial(_act_on, match, api), api.log)

    return handle


def _open_exchange(api: ApiContext, request: Request, responder: Responder) -> ApiExchange:
    chosen = choose_request_id(request.headers.get(HEADER), api.new_id)
    exchange = ApiExchange(
        request=request,
        responder=responder,
        id=chosen,
        started_s=trio.current_time(),
        family=family_of(request.path),
    )
    exchange.extra_headers.extend(api.cors.headers(request.headers))
    parents = request.headers.get_all(TRACEPARENT)
    if parents or api.tracer is not None:
        _open_span(api, exchange, parents[0] if len(parents) == 1 else None)
    return exchange


def _open_span(api: ApiContext, exchange: ApiExchange, parent: str | None) -> None:
    """Begin the request's span, if there is a tracer; note its trace."""
    if api.tracer is None:
        exchange.figures.trace_id = trace_id_of(parent)
        return
    states = exchange.request.headers.get_all(TRACESTATE)
    exchange.span = api.tracer.start(parent, ",".join(states) or None, api.now_s())
    exchange.figures.trace_id = exchange.span.trace_id


async def _act_on(match: Match, api: ApiContext, exchange: ApiExchange) -> None:
    """Run the endpoint that the router found, or answer without one; a preflight needs no key."""
    api.pages.check(exchange.request.headers)
    if isinstance(match, RouteFound):
        exchange.params = match.params
        with _inside(api, match.route.name, exchange), _cancellable(api, exchange):
            await load_endpoint(match.route.endpoint)(api, exchange)
    elif (headers := _preflight(api, match, exchange.request)) is not None:
        await exchange.send(b"", 204, headers)
    else:
        with _inside(api, NO_ROUTE, exchange):
            response = answer_without_endpoint(match, exchange.request, _REMEDY)
            await exchange.send(response.body, response.status, response.headers.pairs)


def _preflight(api: ApiContext, match: WrongMethod | UnknownPath, request: Request) -> Fields | None:
    methods = match.allow if isinstance(match, WrongMethod) else ()
    return api.cors.preflight(request.method, request.headers, methods)


@contextmanager
def _inside(api: ApiContext, route: str, exchange: ApiExchange) -> Iterator[None]:
    """Let the request in through the door, or raise its refusal; the permit is given back however the block ends."""
    request = exchange.request
    exchange.entry = api.door.enter(
        Knock(
            route=route,
            generates=request.method == "POST",
            headers=request.headers,
            peer=request.peer,
            now_s=trio.current_time(),
            wall_s=api.now_s(),
        )
    )
    exchange.figures.key = exchange.entry.key_name
    try:
        yield
    finally:
        exchange.leave()


def _cancellable(api: ApiContext, exchange: ApiExchange) -> AbstractContextManager[None]:
    """Let the request be listed and cancelled by its owner for the block, if it asks for work."""
    request = exchange.request
    if request.method != "POST":
        return nullcontext()
    return api.open.holding(
        OpenRequest(
            id=exchange.id,
            owner=exchange.tenant,
            path=request.path,
            created_s=api.now_s(),
            figures=lambda: exchange.figures,
            elapsed_ms=exchange.elapsed_ms,
            work=exchange.work,
        )
    )


def make_fault_renderer(
    new_id: Callable[[], str], log: Callable[[RequestRecord], None] | None = None
) -> Callable[[HttpFault, Request | None], Response]:
    """Return the function that shows faults of HTTP before a handler runs, in the shape of the errors of the path's family.

    `log` gets a record of each fault that no handler has logged: bytes that are not a request.
    """

    def render(fault: HttpFault, request: Request | None) -> Response:
        answer = describe_fault(fault)
        chosen = choose_request_id(None if request is None else request.headers.get(HEADER), new_id)
        if request is None and log is not None:
            log(RequestRecord(request_id=chosen, method="-", path="-", status=fault.status, error=answer.kind))
        family = OPENAI if request is None else family_of(request.path)
        headers = (*error_headers(answer, fault), *family.id_headers(chosen))
        return Response(fault.status, family.error_document(answer, chosen), headers)

    return render
