"""The model of a target, read from the server if the user named none."""

from __future__ import annotations

import attrs
import msgspec

from tlserve.bench.target import TargetServer
from tlserve.errors import OperatorError
from tlserve.http.client.connection import ResponseBroken, connect


async def with_model(target: TargetServer) -> TargetServer:
    """Return `target` with the first model that it lists, if it has none yet; raises OperatorError."""
    if target.model:
        return target
    try:
        async with await connect(target.address.host, target.address.port) as client:
            answer = await client.request("GET", target.path("/models"), target.headers)
    except (OSError, ResponseBroken) as error:
        raise OperatorError(f"{target.url} does not answer: {error}") from None
    if answer.status != 200:
        raise OperatorError(f"{target.url} answers GET /v1/models with {answer.status}; name its model")
    try:
        model = str(msgspec.json.decode(answer.body)["data"][0]["id"])
    except (msgspec.DecodeError, KeyError, IndexError, TypeError):
        raise OperatorError(f"{target.url} lists no model; name one") from None
    return attrs.evolve(target, model=model)
