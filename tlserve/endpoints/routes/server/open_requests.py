"""GET /v1/requests, GET and DELETE /v1/requests/{id}: the requests that are being answered, and their end by their id.

The id is the `X-Request-Id` of the request. A client sees and cancels the requests of its own key, or without keys those from its
own address; another's request is not found, as one that has ended. A response in the background is cancelled by its own route.
"""

from __future__ import annotations

from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange
from tlserve.endpoints.open_requests import OpenRequest
from tlserve.http.messages import HttpFault
from tlserve.openai.server_documents import OpenRequestFacts, open_request_document, open_requests_document


async def list_requests(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with all requests of the client that are being answered, the oldest first."""
    document = open_requests_document(list(map(_facts, api.open.of(exchange.tenant))))
    exchange.hold_bytes(len(document))
    await exchange.send(document)


async def show_request(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with one request; the oldest, if several have its id."""
    await exchange.send(open_request_document(_facts(_named(api, exchange)[0])))


async def cancel_request(api: ApiContext, exchange: ApiExchange) -> None:
    """Cancel a request, and answer with it as it was."""
    requests = [(request, _facts(request)) for request in _named(api, exchange)]
    cancelled = [facts for request, facts in requests if request.work.cancel()]
    if not cancelled:
        raise _not_found(exchange)
    await exchange.send(open_request_document(cancelled[0], cancelled=True))


def _named(api: ApiContext, exchange: ApiExchange) -> list[OpenRequest]:
    requests = api.open.named(exchange.tenant, exchange.params["id"])
    if not requests:
        raise _not_found(exchange)
    return requests


def _not_found(exchange: ApiExchange) -> HttpFault:
    name = exchange.params["id"][:64]
    return HttpFault(404, f"the request {name!r} is not being answered now", code="request_not_found")


def _facts(request: OpenRequest) -> OpenRequestFacts:
    return OpenRequestFacts(
        id=request.id,
        path=request.path,
        state=request.state.value,
        created=int(request.created_s),
        elapsed_ms=request.elapsed_ms(),
        figures=request.figures(),
    )
