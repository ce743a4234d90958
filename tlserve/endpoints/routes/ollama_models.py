"""GET /api/tags, /api/ps, /api/version, POST /api/show and the vectors of Ollama's API.

A name is listed with ":latest" behind it, as its clients write names; a request can leave that out. The size and the digest of a
model's file are not known here, and are 0 and empty; the size of a model that is running is what it takes in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tlserve import __version__
from tlserve.api.answers import moment
from tlserve.api.inputs import EmbeddingsRequest
from tlserve.chat.served_model import Served
from tlserve.chat.thinking import can_switch_thinking
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange
from tlserve.endpoints.request_body import Incoming, read_incoming
from tlserve.endpoints.routes.embeddings import Vector, answer_embeddings
from tlserve.generation import ModelState
from tlserve.ollama.documents import details, embed_document, encode, model_fields
from tlserve.ollama.requests import LATEST, parse_ollama_embed, parse_ollama_embedding, parse_show

_END_OF_TIME_S = 253_402_300_799
"""The last second of the year 9999: when a model leaves that never does."""


async def tags(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with every name of every model."""
    models = [model_fields(name, "", served.created) for name, served in _named(api)]
    await exchange.send(encode({"models": models}))


async def running(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with the models that are in memory, and when each leaves if no request comes."""
    models = [
        {
            **model_fields(name, "", served.created, status.memory_bytes),
            "expires_at": _moment_after(api.now_s(), status.leaves_in_s),
            "size_vram": 0,
            "context_length": served.backend.info().context_tokens,
        }
        for name, served in _named(api)
        if served.backend.info().ready and (status := served.residency.status()).state is ModelState.LOADED
    ]
    await exchange.send(encode({"models": models}))


def _moment_after(now_s: float, wait_s: float) -> str:
    return moment(int(min(now_s + wait_s, _END_OF_TIME_S)))


async def ollama_version(_api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with the version of this server."""
    await exchange.send(encode({"version": __version__}))


async def show(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with the template, the context and the capabilities of a model."""
    incoming = await read_incoming(api, exchange, parse_show)
    served = incoming.served
    document = {
        "modelfile": "",
        "parameters": "",
        "template": served.template.source if served.generates else "",
        "details": details(""),
        "model_info": {"general.architecture": "", "general.context_length": served.backend.info().context_tokens},
        "capabilities": _capabilities(served),
        "modified_at": moment(served.created),
    }
    await exchange.send(encode(document))


def _named(api: ApiContext) -> Iterator[tuple[str, Served]]:
    return (
        (name if ":" in name else name + LATEST, served) for served in api.catalogue.models for name in served.names
    )


def _capabilities(served: Served) -> list[str]:
    thinks = served.generates and can_switch_thinking(served.template) is True
    facts = {
        "completion": served.generates,
        "tools": served.generates,
        "thinking": thinks,
        "embedding": served.embeds,
    }
    return [name for name, holds in facts.items() if holds]


async def embed(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with one vector per text, in order."""

    def document(incoming: Incoming[EmbeddingsRequest], vectors: Sequence[Vector], prompt_tokens: int) -> bytes:
        total_ms = exchange.elapsed_ms()
        return embed_document(
            model=incoming.named,
            vectors=vectors,
            prompt_tokens=prompt_tokens,
            total_ms=total_ms,
            load_ms=exchange.figures.load_ms or 0.0,
        )

    await answer_embeddings(api, exchange, parse_ollama_embed, document)


async def embed_one(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with the vector of one text, in the older form."""
    await answer_embeddings(api, exchange, parse_ollama_embedding, _one)


def _one(_incoming: Incoming[EmbeddingsRequest], vectors: Sequence[Vector], _prompt_tokens: int) -> bytes:
    return encode({"embedding": vectors[0].tolist()})
