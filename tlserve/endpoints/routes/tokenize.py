"""POST /v1/tokenize, /v1/detokenize, /v1/chat/completions/input_tokens: the tokens of a model's input, without running it.

`/tokenize` and `/detokenize` are for clients of vLLM and llama.cpp, with their names of the text. A text is tokenized as
/v1/completions reads it, or as /v1/embeddings does if the model makes only vectors: `add_special_tokens` adds BOS in front if
the model needs one, and for vectors EOS at the end; `X-TL-Special-Tokens: 1` lets the text spell control tokens. Detokenizing
spells every id, also control tokens. The count of input tokens is that of the rendered chat: the `prompt_tokens` of the same
body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tlserve.chat.prompt import encode_completion
from tlserve.chat.served_model import Served, check_generates
from tlserve.endpoints.answers.budget import check_ids
from tlserve.endpoints.answers.chat import count_chat_tokens, ignored_names, tokenize_limit
from tlserve.endpoints.answers.chat_prompt import encode_prompt
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange
from tlserve.endpoints.memory import bytes_of_ids
from tlserve.endpoints.request_body import read_incoming
from tlserve.endpoints.request_headers import SPECIAL_TOKENS, read_switch
from tlserve.openai.documents import detokenize_document, input_tokens_document, tokenize_document
from tlserve.openai.requests import (
    DetokenizeRequest,
    TokenizeRequest,
    parse_chat,
    parse_detokenize,
    parse_tokenize,
)
from tlserve.text.tokenizer import framed


async def tokenize(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with the ids and their count."""
    specials = read_switch(exchange.request.headers, SPECIAL_TOKENS)
    incoming = await read_incoming(api, exchange, parse_tokenize)
    served, request = incoming.served, incoming.request
    limit = tokenize_limit(api)
    limit(len(request.text))
    if request.chat is not None:
        check_generates(served)
        exchange.ignored = ignored_names(served, request.chat)
    document = await api.offload.run(
        incoming.size_bytes, lambda: _tokenize(served, request, specials, limit), exchange.tenant
    )
    exchange.hold_bytes(len(document))
    await exchange.send(document)


def _tokenize(served: Served, request: TokenizeRequest, specials: bool, limit: Callable[[int], None]) -> bytes:
    if request.chat is None:
        ids = _ids(served, request, specials if request.parse_special is None else request.parse_special)
    else:
        ids = encode_prompt(served, request.chat, limit).ids
    spelled = [served.tokenizer.token_spelling(token).decode(errors="replace") for token in ids]
    return tokenize_document(
        ids,
        max_model_len=served.backend.info().context_tokens,
        token_strs=spelled if request.token_strs else None,
    )


def _ids(served: Served, request: TokenizeRequest, specials: bool) -> Sequence[int]:
    if request.add_special_tokens and served.generates:
        return encode_completion(served.tokenizer, request.text, specials=specials)
    ids = (served.tokenizer.encode_with_specials if specials else served.tokenizer.encode)(request.text)
    return framed(served.tokenizer, ids) if request.add_special_tokens else ids


async def detokenize(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with the text of token ids."""
    await _send_text(api, exchange, ("text",))


async def detokenize_for_others(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with the text of token ids, under the names of vLLM and of llama.cpp."""
    await _send_text(api, exchange, ("prompt", "content"))


async def _send_text(api: ApiContext, exchange: ApiExchange, names: Sequence[str]) -> None:
    incoming = await read_incoming(api, exchange, parse_detokenize)
    served, request = incoming.served, incoming.request
    exchange.hold_bytes(bytes_of_ids(len(request.tokens)))
    document = await api.offload.run(incoming.size_bytes, lambda: _detokenize(served, request, names), exchange.tenant)
    exchange.hold_bytes(len(document))
    await exchange.send(document)


def _detokenize(served: Served, request: DetokenizeRequest, names: Sequence[str]) -> bytes:
    check_ids(request.tokens, served.tokenizer.vocabulary_size, "tokens")
    spelled = b"".join(map(served.tokenizer.token_spelling, request.tokens))
    return detokenize_document(spelled.decode(errors="replace"), names)


async def count_input_tokens(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with the number of tokens in the prompt of a chat body."""
    await exchange.send(input_tokens_document(await count_chat_tokens(api, exchange, parse_chat)))
