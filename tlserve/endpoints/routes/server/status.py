"""GET /health, /version and /load: the status of the server in the shapes that clients of vLLM and llama.cpp read.

`/health` reports readiness, `/load` the requests that are under way or wait. Does not know metrics.
"""

from __future__ import annotations

import msgspec

from tlserve import __version__
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange
from tlserve.errors import Unavailable


async def health(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer 200 if every model is ready, else 503 with the name of one that is not."""
    for served in api.catalogue.models:
        if not served.backend.info().ready:
            raise Unavailable(f"the model {served.model_id!r} is not ready; retry soon")
    await exchange.send(msgspec.json.encode({"status": "ok"}))


async def version(_api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with the version of the server."""
    await exchange.send(msgspec.json.encode({"version": __version__}))


async def load(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with the number of requests that run or wait, over all models."""
    figures = [served.backend.statistics() for served in api.catalogue.models]
    count = sum(own.active_sequences + own.queue_depth for own in figures)
    await exchange.send(msgspec.json.encode({"server_load": count}))
