"""POST /v1/responses: a chat in the form of the Responses API.

The prompt and the answer are those of /v1/chat/completions. A limit of tokens that does not fit the context is lowered, because
it is an upper bound; the answer then ends as incomplete.
"""

from __future__ import annotations

from tlserve.endpoints.answers.chat import answer_chat
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange
from tlserve.endpoints.request_body import read_generation
from tlserve.endpoints.responses.form import ResponseForm
from tlserve.errors import Refusal
from tlserve.responses.requests import parse_response


async def responses(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with a response, the assistant's next items."""
    incoming = await read_generation(api, exchange, parse_response)
    request = incoming.request
    for field, asked in (
        ("store", request.store),
        ("background", request.background),
        ("previous_response_id", request.previous),
    ):
        if asked:
            raise Refusal(f"{field} is not served: this server keeps no responses; leave it out", param=field)
    form = ResponseForm(request, api.now_s)
    chat = incoming.with_request(request.chat(request.items))
    await answer_chat(api, exchange, chat, form.shape)
