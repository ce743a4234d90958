"""GET /v1/models and /v1/models/{id}: the served models."""

from __future__ import annotations

from collections.abc import Iterator

from tlserve.chat.served_model import Served
from tlserve.endpoints.capabilities import capabilities
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange
from tlserve.openai.documents import ModelCard, model_document, models_document


async def list_models(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with every id that a request can name, also aliases."""
    cards = (card for served in api.catalogue.models for card in _cards(served))
    await exchange.send(models_document(cards))


async def show_model(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with one model, or 404 if it is not served."""
    name = exchange.params["id"]
    await exchange.send(model_document(_card(api.catalogue.pick(name), name)))


def _cards(served: Served) -> Iterator[ModelCard]:
    return (_card(served, name) for name in served.names)


def _card(served: Served, name: str) -> ModelCard:
    info = served.backend.info()
    return ModelCard(
        id=name,
        created=served.created,
        root=served.model_id,
        n_ctx=info.context_tokens,
        loaded=info.ready,
        capabilities=capabilities(served),
    )
