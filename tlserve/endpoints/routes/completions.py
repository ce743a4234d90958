"""POST /v1/completions: raw texts (or token ids), continued.

A prompt is ordinary text: the spelling of a control token in it stays text, unless the caller, who writes the whole prompt here,
sends `X-TL-Special-Tokens: 1`. Token ids are used unchanged. Several prompts are answered at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tlserve.api.inputs import Input
from tlserve.chat.dialect import FROM_NOTHING
from tlserve.chat.dialects.plain import PLAIN
from tlserve.chat.grammars.answers import answer_grammar
from tlserve.chat.prompt import encode_completion
from tlserve.chat.served_model import Served
from tlserve.endpoints.answers.answer import answer
from tlserve.endpoints.answers.answer_plan import GenerationTask, TaskPrompt
from tlserve.endpoints.answers.budget import COMPLETION_TOKENS, check_ids, check_length, kept_of_prompt
from tlserve.endpoints.answers.chat import tokenize_limit
from tlserve.endpoints.answers.openai_shape import choices_shape
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange
from tlserve.endpoints.memory import bytes_of_ids, bytes_of_inputs
from tlserve.endpoints.request_body import read_generation
from tlserve.endpoints.request_headers import SPECIAL_TOKENS, read_switch
from tlserve.openai.chunks import completion_chunks
from tlserve.openai.documents import completion_document
from tlserve.openai.requests import CompletionRequest, parse_completion

SHAPE = choices_shape("cmpl-", completion_chunks, completion_document, default_tokens=COMPLETION_TOKENS)


async def completions(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with the continuation of every prompt."""
    specials = read_switch(exchange.request.headers, SPECIAL_TOKENS)
    incoming = await read_generation(api, exchange, parse_completion)
    served, request = incoming.served, incoming.request
    given_bytes = bytes_of_inputs(request.prompts)
    exchange.hold_bytes(given_bytes)
    with incoming.deadline.obeyed():
        prompts = await api.offload.run(
            incoming.size_bytes,
            lambda: encode_prompts(served, request, specials, tokenize_limit(api)),
            exchange.tenant,
        )
    exchange.hold_bytes(bytes_of_ids(sum(len(prompt.ids) for prompt in prompts)) - given_bytes)
    task = GenerationTask(
        served=served,
        named=incoming.named,
        shape=SHAPE,
        options=request.options,
        prompts=prompts,
        headers=incoming.headers,
        deadline=incoming.deadline,
    )
    await answer(api, exchange, task)


def encode_prompts(
    served: Served, request: CompletionRequest, specials: bool, limit: Callable[[int], None]
) -> tuple[TaskPrompt, ...]:
    """Return the prompts in order; raises ClientError for an id that the vocabulary does not have.

    `limit` checks the number of characters of a prompt of which only the end is kept.
    """
    context_tokens = served.backend.info().context_tokens
    grammar = answer_grammar(request.options.format, None, PLAIN, FROM_NOTHING, served.tokenizer.special_tokens)
    cut = limit if request.options.keep_last is not None else None
    return tuple(
        TaskPrompt(
            ids=kept_of_prompt(_ids(served, prompt, specials, cut), request.options, context_tokens),
            place=prompt.place,
            grammar=grammar,
            echo=_echo(served, prompt, request.options.shows_controls) if request.echo else None,
            only_echo=request.only_echo,
        )
        for prompt in request.prompts
    )


def _ids(served: Served, prompt: Input, specials: bool, cut: Callable[[int], None] | None) -> Sequence[int]:
    if isinstance(prompt.content, str):
        if cut is not None:
            cut(len(prompt.content))
        else:
            check_length(served.tokenizer, len(prompt.content), served.backend.info().context_tokens, prompt.place)
        return encode_completion(served.tokenizer, prompt.content, specials=specials)
    check_ids(prompt.content, served.backend.info().vocabulary_size, prompt.place)
    return prompt.content


def _echo(served: Served, prompt: Input, shows_controls: bool) -> str:
    """Return a text as it was sent, or the text of token ids: U+FFFD for what is not UTF-8, nothing for hidden tokens."""
    if isinstance(prompt.content, str):
        return prompt.content
    bytes_of = served.tokenizer.token_spelling if shows_controls else served.tokenizer.token_bytes
    return b"".join(map(bytes_of, prompt.content)).decode(errors="replace")
