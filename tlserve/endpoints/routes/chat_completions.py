"""POST /v1/chat/completions: the turns of a conversation, continued by the assistant."""

from __future__ import annotations

from functools import partial

from tlserve.chat.served_model import REASONING_NAMES, Served
from tlserve.endpoints.answers.answer_plan import AnswerShape
from tlserve.endpoints.answers.chat import answer_chat
from tlserve.endpoints.answers.openai_shape import choices_shape
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange
from tlserve.endpoints.request_body import read_generation
from tlserve.openai.chunks import chat_chunks
from tlserve.openai.documents import chat_document
from tlserve.openai.requests import parse_chat

SHAPE = choices_shape("chatcmpl-", chat_chunks, chat_document)


async def chat_completions(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with the assistant's next turn."""
    incoming = await read_generation(api, exchange, parse_chat)
    await answer_chat(api, exchange, incoming, _shape(incoming.served))


def _shape(served: Served) -> AnswerShape:
    """Return the shape of this model's answers: the name of its reasoning is a setting."""
    names = served.reasoning_names
    if names == REASONING_NAMES:
        return SHAPE
    return choices_shape(
        "chatcmpl-", partial(chat_chunks, reasoning_names=names), partial(chat_document, reasoning_names=names)
    )
