"""The API's one handler: which endpoint answers which route, and the steps that all of them share.

Owns the table of routes, the request id, and the door that every request passes. The door is told which row matched; a request
that no row matches needs a key as well. Does not know what the endpoints do.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import trio

from tlserve.access.cors import Fields
from tlserve.access.door import Knock
from tlserve.access.request_id import HEADER, choose_request_id
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange, describe_fault, error_headers, run_endpoint
from tlserve.endpoints.families import OPENAI, family_of
from tlserve.endpoints.open_requests import OpenRequest
from tlserve.endpoints.routes.chat_completions import chat_completions
from tlserve.endpoints.routes.completions import completions
from tlserve.endpoints.routes.embeddings import embed_for_tei, embeddings
from tlserve.endpoints.routes.infill import infill
from tlserve.endpoints.routes.kept_responses import cancel_response, delete_response, list_input_items, show_response
from tlserve.endpoints.routes.messages import count_tokens, messages
from tlserve.endpoints.routes.models import list_models, show_model
from tlserve.endpoints.routes.ollama_chat import ollama_chat, ollama_generate
from tlserve.endpoints.routes.ollama_models import embed, embed_one, ollama_version, running, show, tags
from tlserve.endpoints.routes.responses import count_response_tokens, responses
from tlserve.endpoints.routes.scores import classify, rerank, score
from tlserve.endpoints.routes.server.healthz import healthz
from tlserve.endpoints.routes.server.open_requests import cancel_request, list_requests, show_request
from tlserve.endpoints.routes.server.props import apply_template, props, tokenizer_info
from tlserve.endpoints.routes.server.status import health, load, version
from tlserve.endpoints.routes.tokenize import count_input_tokens, detokenize, detokenize_for_others, tokenize
from tlserve.http.exchange import Handler
from tlserve.http.messages import HttpFault, Request, Response
from tlserve.http.responder import Responder
from tlserve.http.routing import Route, RouteFound, Router, UnknownPath, WrongMethod, answer_without_endpoint
from tlserve.telemetry.request_log import RequestRecord
from tlserve.telemetry.tracing import TRACEPARENT, TRACESTATE, trace_id_of

ApiEndpoint = Callable[[ApiContext, ApiExchange], Awaitable[None]]
Match = RouteFound[ApiEndpoint] | WrongMethod | UnknownPath

ROUTES: Mapping[tuple[str, str], ApiEndpoint] = {
    ("POST", "/v1/chat/completions"): chat_completions,
    ("POST", "/v1/completions"): completions,
    ("POST", "/infill"): infill,
    ("POST", "/v1/embeddings"): embeddings,
    ("POST", "/v1/rerank"): rerank,
    ("POST", "/v2/rerank"): rerank,
    ("POST", "/rerank"): rerank,
    ("POST", "/v1/score"): score,
    ("POST", "/score"): score,
    ("POST", "/v1/classify"): classify,
    ("POST", "/classify"): classify,
    ("POST", "/embed"): embed_for_tei,
    ("POST", "/v1/chat/completions/input_tokens"): count_input_tokens,
    ("POST", "/v1/responses"): responses,
    ("POST", "/v1/responses/input_tokens"): count_response_tokens,
    ("GET", "/v1/responses/{id}"): show_response,
    ("DELETE", "/v1/responses/{id}"): delete_response,
    ("POST", "/v1/responses/{id}/cancel"): cancel_response,
    ("GET", "/v1/responses/{id}/input_items"): list_input_items,
    ("POST", "/v1/messages"): messages,
    ("POST", "/v1/messages/count_tokens"): count_tokens,
    ("POST", "/v1/tokenize"): tokenize,
    ("POST", "/v1/detokenize"): detokenize,
    ("POST", "/tokenize"): tokenize,
    ("POST", "/detokenize"): detokenize_for_others,
    ("POST", "/api/chat"): ollama_chat,
    ("POST", "/api/generate"): ollama_generate,
    ("POST", "/api/embed"): embed,
    ("POST", "/api/embeddings"): embed_one,
    ("POST", "/api/show"): show,
    ("GET", "/api/tags"): tags,
    ("GET", "/api/ps"): running,
    ("GET", "/api/version"): ollama_version,
    ("GET", "/v1/models"): list_models,
    ("GET", "/v1/models/{id+}"): show_model,
    ("GET", "/v1/requests"): list_requests,
    ("GET", "/v1/requests/{id}"): show_request,
    ("DELETE", "/v1/requests/{id}"): cancel_request,
    ("GET", "/healthz"): healthz,
    ("GET", "/health"): health,
    ("GET", "/version"): version,
    ("GET", "/load"): load,
    ("GET", "/props"): props,
    ("POST", "/apply-template"): apply_template,
    ("GET", "/tokenizer_info"): tokenizer_info,
}
NO_ROUTE = ""
_REMEDY = "the API is below /v1, and /readyz and /metrics are on the health port"


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
            await match.route.endpoint(api, exchange)
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
