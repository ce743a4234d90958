"""GET /v1/models and /v1/models/{id}: the served models, in the form of the Messages API if a request names its version."""

from __future__ import annotations

from typing import Any

from tlserve.anthropic import documents
from tlserve.anthropic.documents import encode, model_fields
from tlserve.chat.served_model import Served
from tlserve.endpoints.capabilities import capabilities
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange
from tlserve.endpoints.routes.messages import VERSION, check_version
from tlserve.generation import ModelState
from tlserve.openai.documents import ModelCard, model_document, models_document


async def list_models(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with every id that a request can name, also aliases."""
    named = [(name, served) for served in api.catalogue.models for name in served.names]
    if VERSION in exchange.request.headers:
        check_version(exchange.request.headers)
        await exchange.send(documents.models_document([_listed(served, name) for name, served in named]))
    else:
        await exchange.send(models_document(_card(served, name) for name, served in named))


async def show_model(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with one model, or 404 if it is not served."""
    name = exchange.params["id"]
    served = api.catalogue.pick(name)
    if VERSION in exchange.request.headers:
        check_version(exchange.request.headers)
        await exchange.send(encode(_listed(served, name)))
    else:
        await exchange.send(model_document(_card(served, name)))


def _listed(served: Served, name: str) -> dict[str, Any]:
    return model_fields(name, served.created, served.backend.info().context_tokens)


def _card(served: Served, name: str) -> ModelCard:
    info, state = served.backend.info(), served.residency.status().state
    if state is ModelState.LOADED and not info.ready:  # the nodes of a head that has none
        state = ModelState.UNLOADED
    return ModelCard(
        id=name,
        created=served.created,
        root=served.model_id,
        n_ctx=info.context_tokens,
        loaded=state is ModelState.LOADED,
        state=state.value,
        capabilities=capabilities(served),
    )
