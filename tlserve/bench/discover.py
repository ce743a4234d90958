"""The model of a target, read from the server if the user named none."""

from __future__ import annotations

import attrs
import msgspec

from tlserve.bench.target import TargetServer
from tlserve.errors import OperatorError
from tlserve.http.client.connection import ResponseBroken
from tlserve.http.client.origin import HandshakeFailed

_KEY_MISSING = "requires a key (401): set TL_API_KEY or TL_PEER_API_KEY, or give the key by --api-key-file"
_KEY_REFUSED = "does not accept the given key (401)"


async def with_model(target: TargetServer) -> TargetServer:
    """Return `target` with the first model that it lists, if it has none yet; raises OperatorError."""
    if target.model:
        return target
    try:
        async with await target.connect() as client:
            answer = await client.request("GET", target.path("/models"), target.headers)
    except HandshakeFailed as error:
        raise OperatorError(f"{target.url}: {error}; --ca names a file of certificates to trust") from None
    except (OSError, ResponseBroken) as error:
        raise OperatorError(f"{target.url} does not answer: {error}") from None
    if answer.status == 401:
        raise OperatorError(f"{target.url} {_KEY_REFUSED if target.api_key else _KEY_MISSING}")
    if answer.status != 200:
        raise OperatorError(f"{target.url} answers GET /v1/models with {answer.status}; name its model")
    try:
        model = str(msgspec.json.decode(answer.body)["data"][0]["id"])
    except (msgspec.DecodeError, RecursionError, KeyError, IndexError, TypeError):
        raise OperatorError(f"{target.url} lists no model; name one") from None
    return attrs.evolve(target, model=model)
