"""A request for the next turn of a conversation -> its answer, whatever family of endpoints it came through.

Owns the steps from the turns to a generation task: the prompt, the grammar of the answer, the fields without effect. Does not
know bodies and documents: the request is parsed, and the shape of the answer is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from tlserve.api.chat_request import BodyRules, ChatRequest, refuse_ignored
from tlserve.chat.grammars.answers import answer_grammar
from tlserve.chat.messages import conversation_of
from tlserve.chat.served_model import Served, check_generates
from tlserve.chat.thinking import unread_variables
from tlserve.endpoints.answers.answer import answer
from tlserve.endpoints.answers.answer_plan import AnswerShape, GenerationTask, TaskPrompt
from tlserve.endpoints.answers.budget import check_length, kept_of_prompt
from tlserve.endpoints.answers.chat_prompt import encode_prompt, encode_truncated
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange
from tlserve.endpoints.memory import bytes_of_ids
from tlserve.endpoints.request_body import IncomingGeneration, read_incoming
from tlserve.http.messages import HttpFault

Chat = TypeVar("Chat", bound=ChatRequest)


async def answer_chat(
    api: ApiContext, exchange: ApiExchange, incoming: IncomingGeneration[Chat], shape: AnswerShape
) -> None:
    """Answer with the assistant's next turn, in `shape`."""
    await answer(api, exchange, await plan_chat(api, exchange, incoming, shape))


async def plan_chat(
    api: ApiContext, exchange: ApiExchange, incoming: IncomingGeneration[Chat], shape: AnswerShape
) -> GenerationTask:
    """Return the work of answering with the assistant's next turn, in `shape`; its prompt is encoded."""
    served, request = incoming.served, incoming.request
    exchange.ignored = ignored_names(served, request)
    with incoming.deadline.obeyed():
        prompt = await api.offload.run(
            incoming.size_bytes, lambda: _prompt_of(served, request, tokenize_limit(api)), exchange.tenant
        )
    exchange.hold_bytes(bytes_of_ids(len(prompt.ids)))
    return GenerationTask(
        served=served,
        named=incoming.named,
        shape=shape,
        options=request.options,
        prompts=[prompt],
        headers=incoming.headers,
        deadline=incoming.deadline,
        dialect=served.dialect,
        tools=request.tools.use,
    )


def _prompt_of(served: Served, request: ChatRequest, limit: Callable[[int], None]) -> TaskPrompt:
    """Return the prompt, with the grammar of its answers; `limit` checks the length if only the end of it is kept."""
    context_tokens = served.backend.info().context_tokens

    def check(characters: int) -> None:
        check_length(served.tokenizer, characters, context_tokens, request.place)

    if request.truncates:
        request, prompt = encode_truncated(served, request, context_tokens, check)
    else:
        prompt = encode_prompt(served, request, check if request.options.keep_last is None else limit)
    grammar = answer_grammar(
        request.options.format, request.tools.use, served.dialect, prompt.opening, served.tokenizer.special_tokens
    )
    return TaskPrompt(
        ids=kept_of_prompt(prompt.ids, request.options, context_tokens),
        place=request.place,
        opening=prompt.opening,
        grammar=grammar,
        conversation=conversation_of(request.messages),
    )


def ignored_names(served: Served, request: ChatRequest) -> tuple[str, ...]:
    """Return the fields without effect, also those that only this model ignores; raises ClientError for a strict request."""
    unread = unread_variables(served.template, request.thinking)
    if request.strict:
        refuse_ignored(unread)
    return (*request.ignored, *unread)


async def count_chat_tokens(
    api: ApiContext, exchange: ApiExchange, parse: Callable[[bytes, BodyRules], ChatRequest]
) -> int:
    """Return the number of tokens in the prompt of a chat body."""
    incoming = await read_incoming(api, exchange, parse)
    return await count_prompt(api, exchange, incoming.served, incoming.request, incoming.size_bytes)


async def count_prompt(
    api: ApiContext, exchange: ApiExchange, served: Served, request: ChatRequest, size_bytes: int
) -> int:
    """Return the number of tokens in the prompt of a chat, whose work grows with `size_bytes`."""
    check_generates(served)
    exchange.ignored = ignored_names(served, request)
    limit = tokenize_limit(api)
    prompt = await api.offload.run(size_bytes, lambda: encode_prompt(served, request, limit), exchange.tenant)
    exchange.figures.prompt_tokens = len(prompt.ids)
    return len(prompt.ids)


def tokenize_limit(api: ApiContext) -> Callable[[int], None]:
    """Return the check of a text's length: no context bounds it, and encoding takes 150 times its memory."""
    most = api.settings.max_tokenize_characters

    def check(characters: int) -> None:
        if characters > most:
            raise HttpFault(
                413, f"the text has {characters} characters, and the limit is {most} (max_tokenize_characters)"
            )

    return check
