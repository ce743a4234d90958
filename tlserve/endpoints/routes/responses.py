"""POST /v1/responses: a chat in the form of the Responses API; and the number of tokens in its prompt.

The prompt and the answer are those of /v1/chat/completions. A limit of tokens that does not fit the context is lowered, because
it is an upper bound; the answer then ends as incomplete.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import partial

import msgspec

from tlserve.api.chat_request import ChatRequest
from tlserve.endpoints.answers.answer import start_answer
from tlserve.endpoints.answers.chat import answer_chat, count_prompt, plan_chat
from tlserve.endpoints.answers.residency import loaded
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange
from tlserve.endpoints.request_body import IncomingGeneration, read_generation, read_incoming
from tlserve.endpoints.responses.background import begin_in_background, relay_events
from tlserve.endpoints.responses.form import Keeper, ResponseForm
from tlserve.endpoints.responses.kept import KeptResponses
from tlserve.errors import Refusal
from tlserve.responses.context import find_items
from tlserve.responses.documents import count_document, encode
from tlserve.responses.items import Item
from tlserve.responses.requests import ResponseRequest, parse_count, parse_response


async def responses(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with a response, the assistant's next items; one in the background is answered before it is made."""
    incoming = await read_generation(api, exchange, parse_response)
    request = incoming.request
    earlier, own = await _items(api, exchange, request)
    keeper = _keeper(api.kept, exchange, request, own)
    form = ResponseForm(request, api.now_s, keeper)
    chat = incoming.with_request(request.chat((*earlier, *own)), _held(exchange, earlier))
    if request.background and keeper is not None:
        await _answer_in_background(api, exchange, chat, form, keeper.kept)
    else:
        await answer_chat(api, exchange, chat, form.shape)


async def count_response_tokens(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with the number of tokens in the prompt of a body."""
    incoming = await read_incoming(api, exchange, parse_count)
    request = incoming.request
    earlier, own = await _items(api, exchange, request)
    size_bytes = incoming.size_bytes + _held(exchange, earlier)
    count = await count_prompt(api, exchange, incoming.served, request.chat((*earlier, *own)), size_bytes)
    await exchange.send(count_document(count))


async def _items(
    api: ApiContext, exchange: ApiExchange, request: ResponseRequest
) -> tuple[tuple[Item, ...], tuple[Item, ...]]:
    """Return the items of the earlier responses, and those of the input."""
    refers = any(item["type"] == "item_reference" for item in request.items)
    if not request.previous and not refers:
        return (), request.items
    if api.kept is None:
        field = "previous_response_id" if request.previous else "input"
        raise _refusal(field, "an earlier response or its items")
    owner = exchange.entry.key_name or ""
    return await api.kept.find(partial(find_items, request.previous, request.items), owner)


def _held(exchange: ApiExchange, earlier: tuple[Item, ...]) -> int:
    """Return the size of the earlier items in bytes; it counts as memory of the request."""
    size_bytes = len(msgspec.json.encode(earlier)) if earlier else 0
    exchange.hold_bytes(size_bytes)
    return size_bytes


def _keeper(
    kept: KeptResponses | None, exchange: ApiExchange, request: ResponseRequest, items: tuple[Item, ...]
) -> Keeper | None:
    """Return who keeps the response, None if nobody does; raises Refusal if the request needs that and it cannot be."""
    if kept is None and (request.store or request.background):
        raise _refusal("store" if request.store else "background", "a response")
    if kept is None or request.store is False:
        return None
    return Keeper(kept, exchange.entry.key_name or "", items)


def _refusal(field: str, what: str) -> Refusal:
    return Refusal(f"{field} needs {what} that is kept, and this server keeps none (responses.store)", param=field)


async def _answer_in_background(
    api: ApiContext,
    exchange: ApiExchange,
    incoming: IncomingGeneration[ChatRequest],
    form: ResponseForm,
    kept: KeptResponses,
) -> None:
    task = await plan_chat(api, exchange, incoming, form.shape)
    async with AsyncExitStack() as held:
        await held.enter_async_context(loaded(exchange, task.served, task.deadline))
        live = await begin_in_background(api, exchange, kept, form, start_answer(api, exchange, task), held)
    if incoming.request.options.stream:
        await relay_events(api, exchange, live)
    else:
        await exchange.send(encode(live.events.response))
