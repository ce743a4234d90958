"""POST /v1/embeddings: texts -> unit vectors.

Each input is ordinary text, with BOS where the model wants one. `dimensions` is refused unless it is the model's own: larger
is 400, smaller is 422, because this model was not trained to be cut.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tlserve.endpoints.call import Call, read_priority
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.served import Served
from tlserve.errors import ClientError, ContextLengthExceeded, Refusal
from tlserve.generation import BackendInfo, EmbeddingRequest
from tlserve.openai.documents import embeddings_document
from tlserve.openai.requests import EmbeddingsRequest, parse_embeddings
from tlserve.text.tokenizer import with_bos


async def embeddings(api: ApiContext, call: Call) -> None:
    """Answer with one vector per input, in order."""
    priority = read_priority(call.request.headers)
    body, rules = await api.read_body(call)
    request = await api.offload.run(len(body), lambda: parse_embeddings(body, rules))
    call.ignored = request.ignored
    served = api.catalogue.pick(request.model)
    call.notes["model"] = served.model_id
    check_dimensions(request.dimensions, served.backend.info())
    inputs = await api.offload.run(len(body), lambda: _encode(served, request))
    tokens = sum(map(len, inputs))
    call.notes["prompt_tokens"] = tokens
    vectors = await served.backend.embed(EmbeddingRequest(inputs=inputs, priority=priority, request_id=call.id))
    size_bytes = sum(vector.nbytes for vector in vectors)
    await call.send(await api.offload.run(size_bytes, lambda: _document(request, vectors, tokens)))


def _document(request: EmbeddingsRequest, vectors: Iterable[NDArray[np.float32]], prompt_tokens: int) -> bytes:
    return embeddings_document(
        model=request.model,
        vectors=[vector.tolist() for vector in vectors],
        as_base64=request.as_base64,
        prompt_tokens=prompt_tokens,
    )


def check_dimensions(dimensions: int | None, info: BackendInfo) -> None:
    """Refuse vectors of another length than the model's."""
    size = info.embedding_size
    if dimensions is None or dimensions == size:
        return
    if dimensions > size:
        raise ClientError(
            f"dimensions is {dimensions}, and this model's vectors have {size}; leave it out", param="dimensions"
        )
    raise Refusal(
        f"dimensions is {dimensions}, and this model was not trained to be cut below its {size}; leave it out",
        param="dimensions",
    )


def _encode(served: Served, request: EmbeddingsRequest) -> tuple[tuple[int, ...], ...]:
    context = served.backend.info().context_tokens
    return tuple(_encode_one(served, index, text, context) for index, text in enumerate(request.inputs))


def _encode_one(served: Served, index: int, text: str, context: int) -> tuple[int, ...]:
    ids = with_bos(served.tokenizer, served.tokenizer.encode(text))
    if len(ids) > context:
        raise ContextLengthExceeded(
            f"input {index} has {len(ids)} tokens, and this model's context holds {context}; shorten it", param="input"
        )
    return tuple(ids)
