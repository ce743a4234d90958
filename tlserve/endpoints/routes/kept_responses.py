"""GET, DELETE and POST .../cancel of /v1/responses/{id}, and its input items: responses of earlier requests.

A response of another key is not found, as one that was never made.
"""

from __future__ import annotations

from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange
from tlserve.endpoints.query import read_number, read_query
from tlserve.endpoints.responses.background import relay_events
from tlserve.endpoints.responses.kept import KeptResponses, not_found
from tlserve.errors import ClientError
from tlserve.http import sse
from tlserve.responses.context import earlier_items
from tlserve.responses.documents import deleted_document, encode, page_document
from tlserve.responses.items import Item

_NO_EFFECT = ("include", "include[]", "include_obfuscation")
_RETRIEVING = ("stream", "starting_after")
_LISTING = ("limit", "order", "after")
MAX_PAGE = 100
USUAL_PAGE = 20


async def show_response(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with a response, or with the events of its stream."""
    kept, name, owner = _named(api, exchange)
    given = read_query(exchange, _RETRIEVING, _NO_EFFECT)
    live = kept.live(name, owner)
    if given.get("stream", "false") not in ("true", "1"):
        document = (await kept.get(name, owner)).document if live is None else live.events.response
        await exchange.send(encode(document))
        return
    after = read_number(given, "starting_after", -1, most=1 << 40)
    stored = await kept.get(name, owner)
    if stored.events is None:
        raise ClientError(f"the response {name!r} was not made with stream true; leave stream out", param="stream")
    if live is not None:
        await relay_events(api, exchange, live, after)
    else:
        await _send_events(api, exchange, stored.events[after + 1 :])


async def delete_response(api: ApiContext, exchange: ApiExchange) -> None:
    """Delete a response, which is cancelled if it is not complete."""
    kept, name, owner = _named(api, exchange)
    await kept.delete(name, owner)
    await exchange.send(deleted_document(name))


async def cancel_response(api: ApiContext, exchange: ApiExchange) -> None:
    """Cancel a response in the background, and answer with it; one that has ended stays as it is."""
    kept, name, owner = _named(api, exchange)
    live = kept.live(name, owner)
    if live is not None:
        await kept.cancel(live)
    document = (await kept.get(name, owner)).document
    if not document["background"]:
        raise ClientError(f"the response {name!r} was not made in the background, so that it has ended", param="id")
    await exchange.send(encode(document))


async def list_input_items(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with a page of the items that a response was made from, also those of the responses before it."""
    kept, name, owner = _named(api, exchange)
    given = read_query(exchange, _LISTING, _NO_EFFECT)
    order = given.get("order", "desc")
    if order not in ("asc", "desc"):
        raise ClientError(f'order is {order[:20]!r}; send "asc" or "desc"', param="order")
    limit = read_number(given, "limit", USUAL_PAGE, least=1, most=MAX_PAGE)
    stored = await kept.get(name, owner)
    earlier = await kept.find(lambda find: earlier_items(stored.previous, find), owner)
    items = (*earlier, *stored.items)
    page, has_more = _page(items if order == "asc" else items[::-1], given.get("after", ""), limit)
    await exchange.send(page_document(page, has_more=has_more))


def _page(items: tuple[Item, ...], after: str, limit: int) -> tuple[tuple[Item, ...], bool]:
    begin = 0
    if after:
        places = [place for place, item in enumerate(items) if item["id"] == after]
        if not places:
            raise ClientError(f"after is {after[:64]!r}, which is not an item of this response", param="after")
        begin = places[0] + 1
    return items[begin : begin + limit], len(items) > begin + limit


async def _send_events(api: ApiContext, exchange: ApiExchange, events: tuple[bytes, ...]) -> None:
    exchange.status = 200
    interval_ms, headers = api.settings.ping_interval_ms, exchange.headers()
    async with sse.EventStream(exchange.responder, ping_interval_ms=interval_ms, headers=headers) as stream:
        if events:
            await stream.send_raw(b"".join(events))


def _named(api: ApiContext, exchange: ApiExchange) -> tuple[KeptResponses, str, str]:
    """Return where responses are kept, the id of the request's, and the key's name; raises `HttpFault` 404 if none are kept."""
    name = exchange.params["id"]
    if api.kept is None:
        raise not_found(name)
    return api.kept, name, exchange.entry.key_name or ""
