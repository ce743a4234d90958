"""GET /healthz on the API port: the process is alive, and which kernels compute.

Its status does not report readiness: /readyz on the health port does.
"""

from __future__ import annotations

import msgspec

from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange


async def healthz(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer 200 with the kernels of each model."""
    kernels = {served.model_id: served.backend.info().kernels for served in api.catalogue.models}
    await exchange.send(msgspec.json.encode({"status": "ok", "kernels": kernels}))
