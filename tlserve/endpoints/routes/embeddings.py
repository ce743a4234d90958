"""POST /v1/embeddings: texts or token ids -> vectors, of length 1 unless the model's files turn that off.

Each text is ordinary text, with BOS and EOS ([CLS] and [SEP]) if the model needs them; token ids are used unchanged.
`dimensions` larger than the model's is 400; smaller is 422, unless the model was trained for shorter vectors: then its vectors
are shortened and scaled to length 1 again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from tlserve.api.chat_request import BodyRules
from tlserve.api.inputs import EmbeddingsRequest, Input
from tlserve.chat.served_model import Served, check_embeds
from tlserve.endpoints.answers.budget import check_ids, check_length
from tlserve.endpoints.answers.deadline import plan_deadline
from tlserve.endpoints.answers.residency import kept_for, loaded
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange
from tlserve.endpoints.memory import bytes_of_ids, bytes_of_inputs
from tlserve.endpoints.request_body import Incoming, read_incoming
from tlserve.endpoints.request_headers import read_deadline_s, read_priority
from tlserve.errors import ClientError, ContextLengthExceeded, Refusal
from tlserve.generation import EmbeddingRequest
from tlserve.openai.documents import embeddings_document
from tlserve.openai.requests import parse_embeddings
from tlserve.scoring.requests import parse_tei_embed
from tlserve.text.tokenizer import framed

Vector = NDArray[np.float32]


async def embeddings(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with one vector per input, in order."""
    await answer_embeddings(api, exchange, parse_embeddings, _document)


async def embed_for_tei(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with a list of vectors, as text-embeddings-inference does."""
    await answer_embeddings(api, exchange, parse_tei_embed, _bare)


def _bare(_incoming: Incoming[EmbeddingsRequest], vectors: Sequence[Vector], _prompt_tokens: int) -> bytes:
    return msgspec.json.encode([vector.tolist() for vector in vectors])


async def answer_embeddings(
    api: ApiContext,
    exchange: ApiExchange,
    parse: Callable[[bytes, BodyRules], EmbeddingsRequest],
    document: Callable[[Incoming[EmbeddingsRequest], Sequence[Vector], int], bytes],
) -> None:
    """Answer with the document of the vectors, which gets the request, the vectors and the number of tokens."""
    headers = exchange.request.headers
    priority, header_s = read_priority(headers, exchange.entry), read_deadline_s(headers)
    incoming = await read_incoming(api, exchange, parse)
    served, request = incoming.served, incoming.request
    check_embeds(served)
    deadline = plan_deadline(exchange.started_s, header_s, request.timeout_s, api.settings.answer_timeout_ms)
    with kept_for(served, request.keep_alive_s):
        async with loaded(exchange, served, deadline):
            check_dimensions(request.dimensions, served)
            with deadline.obeyed():
                sent = await _document_of(api, exchange, incoming, priority, document)
    exchange.hold_bytes(len(sent))
    await exchange.send(sent)


async def _document_of(
    api: ApiContext,
    exchange: ApiExchange,
    incoming: Incoming[EmbeddingsRequest],
    priority: int,
    document: Callable[[Incoming[EmbeddingsRequest], Sequence[Vector], int], bytes],
) -> bytes:
    served, request = incoming.served, incoming.request
    given_bytes = bytes_of_inputs(request.inputs)
    exchange.hold_bytes(given_bytes)
    inputs = await api.offload.run(incoming.size_bytes, lambda: _encode(served, request), exchange.tenant)
    tokens = sum(map(len, inputs))
    exchange.hold_bytes(bytes_of_ids(tokens) - given_bytes)
    wanted = EmbeddingRequest(inputs=inputs, priority=priority, request_id=exchange.id)
    vectors = await _embed(exchange, served, wanted)
    size_bytes = sum(vector.nbytes for vector in vectors)
    exchange.hold_bytes(size_bytes)
    shown = [cut(vector, request.dimensions) for vector in vectors]
    return await api.offload.run(size_bytes, lambda: document(incoming, shown, tokens), exchange.tenant)


async def _embed(exchange: ApiExchange, served: Served, request: EmbeddingRequest) -> tuple[Vector, ...]:
    """Return the vectors; their tokens count against the request's key."""
    tokens = sum(map(len, request.inputs))
    exchange.figures.prompt_tokens = tokens
    exchange.reserve_tokens(tokens)
    vectors = await served.backend.embed(request)
    exchange.figures.began = True
    return vectors


def _document(incoming: Incoming[EmbeddingsRequest], vectors: Sequence[Vector], prompt_tokens: int) -> bytes:
    return embeddings_document(
        model=incoming.named, vectors=vectors, as_base64=incoming.request.as_base64, prompt_tokens=prompt_tokens
    )


def cut(vector: Vector, dimensions: int | None) -> Vector:
    """Return the first `dimensions` values of a unit vector `(D,) float32`, as a unit vector again; all of them if None."""
    if dimensions is None or dimensions == len(vector):
        return vector
    head = vector[:dimensions].astype(np.float64)
    length = np.linalg.norm(head)
    return (head / length if length else head).astype(np.float32)


def check_dimensions(dimensions: int | None, served: Served) -> None:
    """Refuse vectors longer than the model's (400), or shorter than it was trained for (422)."""
    size = served.backend.info().embedding_size
    if dimensions is None or dimensions == size:
        return
    if dimensions > size:
        raise ClientError(
            f"dimensions is {dimensions}, but this model's vectors have {size}; leave it out", param="dimensions"
        )
    least = served.min_dimensions or size
    if dimensions < least:
        raise Refusal(
            f"dimensions is {dimensions}, but this model was not trained for vectors below {least}; leave it out",
            param="dimensions",
        )


def _encode(served: Served, request: EmbeddingsRequest) -> tuple[tuple[int, ...], ...]:
    prompt = prompt_of(served, request.input_type, request.prompt_name)
    if request.input_type or request.prompt_name:
        _refuse_ids(request)
    return tuple(encode_input(served, item, prompt) for item in request.inputs)


_ROLES = {"query": ("query",), "document": ("document", "passage", "corpus")}
"""The names that sentence-transformers looks for, in this order."""


def prompt_of(served: Served, input_type: str = "", prompt_name: str = "") -> str:
    """Return what comes before each text: the prompt that is named, or that of its role, or the model's default one."""
    prompts = served.prompts
    if prompt_name:
        if input_type:
            raise ClientError("prompt_name and input_type select a prompt; send one of them", param="prompt_name")
        if prompt_name not in prompts.texts:
            known = ", ".join(sorted(prompts.texts)) or "none"
            raise ClientError(
                f"prompt_name is {prompt_name[:60]!r}, but the model's prompts are: {known[:400]}", param="prompt_name"
            )
        return prompts.texts[prompt_name]
    named = next((name for name in _ROLES.get(input_type, ()) if name in prompts.texts), prompts.default)
    return prompts.texts[named] if named else ""


def _refuse_ids(request: EmbeddingsRequest) -> None:
    for item in request.inputs:
        if not isinstance(item.content, str):
            param = "prompt_name" if request.prompt_name else "input_type"
            raise ClientError(f"{item.place} has token ids, which {param} cannot change; send texts", param=param)


def encode_input(served: Served, item: Input, prompt: str = "") -> tuple[int, ...]:
    """Return the ids of a text after `prompt`, within the ids that the model puts around it; given ids stay as they are."""
    info, content = served.backend.info(), item.content
    if isinstance(content, str):
        content = prompt + content
        check_length(served.tokenizer, len(content), info.context_tokens, item.place)
        content = tuple(framed(served.tokenizer, served.tokenizer.encode(content)))
    else:
        check_ids(content, info.vocabulary_size, item.place)
    if len(content) > info.context_tokens:
        length = f"{item.place} has {len(content)} tokens"
        raise ContextLengthExceeded.of_prompt(length, info.context_tokens, param=item.place, answer=False)
    return content
