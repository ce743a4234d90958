"""GET /props and /tokenizer_info, POST /apply-template: what clients of llama.cpp and vLLM ask of a model before they use it.

The query of the first two can name the model, as a body does. A prompt is rendered as for /v1/chat/completions, and not encoded.
"""

from __future__ import annotations

from tlserve.chat.served_model import Served, check_generates
from tlserve.endpoints.answers.chat import ignored_names
from tlserve.endpoints.answers.chat_prompt import render_prompt
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange
from tlserve.endpoints.query import read_query
from tlserve.endpoints.request_body import read_incoming
from tlserve.generation import ModelState
from tlserve.openai.requests import parse_chat
from tlserve.openai.server_documents import (
    ModelProps,
    TokenizerFacts,
    prompt_document,
    props_document,
    tokenizer_document,
)
from tlserve.text.tokenizer import spelling_of


async def props(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with the limits, the defaults and the template of a model."""
    await _send(exchange, props_document(_props(_named(api, exchange))))


def _props(served: Served) -> ModelProps:
    info, tokenizer, template = served.backend.info(), served.tokenizer, served.template
    has_own = served.generates and template.tool_use is not None
    return ModelProps(
        model_id=served.model_id,
        sampling=served.default_sampling,
        context_tokens=info.context_tokens,
        total_slots=info.admission_limit or 0,
        has_left=served.residency.status().state is not ModelState.LOADED,
        chat_template=template.source if served.generates else "",
        tool_template=template.for_tools.source if has_own else "",
        bos=spelling_of(tokenizer, tokenizer.bos_id),
        eos=spelling_of(tokenizer, tokenizer.eos_id),
    )


async def tokenizer_info(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with the special tokens and the template of a model."""
    served = _named(api, exchange)
    tokenizer = served.tokenizer
    facts = TokenizerFacts(
        kind=type(tokenizer).__name__,
        bos=spelling_of(tokenizer, tokenizer.bos_id),
        eos=spelling_of(tokenizer, tokenizer.eos_id),
        add_bos=tokenizer.add_bos,
        add_eos=tokenizer.add_eos,
        context_tokens=served.backend.info().context_tokens,
        special_tokens=tokenizer.special_tokens,
        chat_template=served.template.source if served.generates else "",
    )
    await _send(exchange, tokenizer_document(facts))


async def apply_template(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with the text of a chat's prompt."""
    incoming = await read_incoming(api, exchange, parse_chat)
    served, request = incoming.served, incoming.request
    check_generates(served)
    exchange.ignored = ignored_names(served, request)
    text = await api.offload.run(incoming.size_bytes, lambda: render_prompt(served, request), exchange.tenant)
    await _send(exchange, prompt_document(text))


def _named(api: ApiContext, exchange: ApiExchange) -> Served:
    """Return the model that the query names, or the only one; raises ClientError and ModelNotFound."""
    served = api.catalogue.pick(read_query(exchange, ("model",)).get("model", ""))
    exchange.figures.model = served.model_id
    return served


async def _send(exchange: ApiExchange, document: bytes) -> None:
    exchange.hold_bytes(len(document))
    await exchange.send(document)
