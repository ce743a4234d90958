"""POST /v1/rerank, /v2/rerank, /v1/score, /v1/classify, and TEI's /rerank: texts -> scores.

A model with a head reads both texts of a pair at once; an encoder without one makes two vectors, whose cosine is the score. A
pair that is too long is refused, unless the request says how much of it is read: then the second text is cut at its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tlserve.api.chat_request import BodyRules
from tlserve.api.inputs import Input
from tlserve.chat.served_model import Served
from tlserve.endpoints.answers.budget import check_length
from tlserve.endpoints.answers.deadline import NO_DEADLINE, Deadline, plan_deadline
from tlserve.endpoints.answers.residency import loaded
from tlserve.endpoints.context import ApiContext
from tlserve.endpoints.exchange import ApiExchange
from tlserve.endpoints.memory import bytes_of_ids
from tlserve.endpoints.request_body import Incoming, read_incoming
from tlserve.endpoints.request_headers import read_deadline_s, read_priority
from tlserve.endpoints.routes.embeddings import prompt_of
from tlserve.errors import ContextLengthExceeded, Refusal
from tlserve.generation import EmbeddingRequest
from tlserve.scoring.documents import classify_document, rerank_document, score_document, texts_document
from tlserve.scoring.requests import ClassifyRequest, PairsRequest, parse_classify, parse_rerank, parse_score
from tlserve.text.tokenizer import framed

Vector = NDArray[np.float32]
Ids = tuple[int, ...]
Texts = TypeVar("Texts", PairsRequest, ClassifyRequest)


async def rerank(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with the documents' scores, the best one first."""
    incoming, deadline = await _read(api, exchange, parse_rerank)
    scores, tokens = await _score_pairs(api, exchange, incoming, deadline)
    request = incoming.request
    ranked = sorted(enumerate(scores), key=lambda one: -one[1])[: request.top]
    texts = [str(second.content) for _, second in request.pairs] if request.shows_texts else None
    if request.form == "texts":
        await exchange.send(texts_document(ranked, texts))
        return
    named = incoming.named
    await exchange.send(rerank_document(request_id=exchange.id, model=named, ranked=ranked, texts=texts, tokens=tokens))


async def score(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with the score of every pair, in order."""
    incoming, deadline = await _read(api, exchange, parse_score)
    scores, tokens = await _score_pairs(api, exchange, incoming, deadline)
    created = int(api.now_s())
    document = score_document(
        request_id=exchange.id, model=incoming.named, created=created, scores=scores, tokens=tokens
    )
    await exchange.send(document)


async def classify(api: ApiContext, exchange: ApiExchange) -> None:
    """Answer with the scores of all labels for every text."""
    incoming, deadline = await _read(api, exchange, parse_classify)
    served, request = incoming.served, incoming.request
    if served.scores is None:
        raise Refusal(f"the model {served.model_id!r} has no labels; name a model that classifies", param="model")
    with deadline.obeyed():
        inputs = await api.offload.run(
            incoming.size_bytes, lambda: tuple(_one(served, item, request) for item in request.inputs), exchange.tenant
        )
        vectors = await _embed(exchange, served, inputs)
    document = classify_document(
        request_id=exchange.id,
        model=incoming.named,
        created=int(api.now_s()),
        labels=served.scores.labels,
        scores=[activated(vector, "identity" if request.raw else served.scores.activation) for vector in vectors],
        tokens=sum(map(len, inputs)),
    )
    await exchange.send(document)


async def _read(
    api: ApiContext, exchange: ApiExchange, parse: Callable[[bytes, BodyRules], Texts]
) -> tuple[Incoming[Texts], Deadline]:
    headers = exchange.request.headers
    header_s = read_deadline_s(headers)
    incoming = await read_incoming(api, exchange, parse)
    given_s = incoming.request.timeout_s
    return incoming, plan_deadline(exchange.started_s, header_s, given_s, api.settings.answer_timeout_ms)


async def _score_pairs(
    api: ApiContext, exchange: ApiExchange, incoming: Incoming[PairsRequest], deadline: Deadline
) -> tuple[list[float], int]:
    """Return the score of every pair, and the number of tokens that were read."""
    served, request = incoming.served, incoming.request
    scores = served.scores
    if scores is None and not served.embeds:
        raise Refusal(f"the model {served.model_id!r} makes no scores; name another model", param="model")
    if scores is not None and len(scores.labels) != 1:
        raise Refusal(
            f"the model {served.model_id!r} scores {len(scores.labels)} labels, not pairs; send its texts to /v1/classify",
            param="model",
        )
    encode = _vector_inputs if scores is None else _pair_inputs
    with deadline.obeyed():
        inputs = await api.offload.run(incoming.size_bytes, lambda: encode(served, request), exchange.tenant)
        vectors = await _embed(exchange, served, inputs)
    tokens = sum(map(len, inputs))
    if scores is not None:
        activation = "identity" if request.raw else scores.activation
        return [activated(vector, activation)[0] for vector in vectors], tokens
    queries = len(inputs) - len(request.pairs)
    firsts = vectors[:queries] if queries > 1 else vectors[:1] * len(request.pairs)
    return [cosine(a, b) for a, b in zip(firsts, vectors[queries:], strict=True)], tokens


async def _embed(exchange: ApiExchange, served: Served, inputs: tuple[Ids, ...]) -> tuple[Vector, ...]:
    """Return the numbers of every input; their tokens count against the request's key."""
    tokens = sum(map(len, inputs))
    exchange.hold_bytes(bytes_of_ids(tokens))
    exchange.figures.prompt_tokens = tokens
    exchange.reserve_tokens(tokens)
    priority = read_priority(exchange.request.headers, exchange.entry)
    async with loaded(exchange, served, NO_DEADLINE):  # the caller obeys the deadline of the request
        vectors = await served.backend.embed(EmbeddingRequest(inputs=inputs, priority=priority, request_id=exchange.id))
    exchange.figures.began = True
    return vectors


def activated(vector: Vector, activation: str) -> list[float]:
    """Return the scores that the numbers of a head become."""
    values = vector.astype(np.float64)
    if activation == "sigmoid":
        return [_sigmoid(float(value)) for value in values]
    if activation == "softmax":
        powers = [math.exp(float(value) - float(values.max())) for value in values]
        return [power / math.fsum(powers) for power in powers]
    return [float(value) for value in values]


def _sigmoid(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value >= 0 else math.exp(value) / (1 + math.exp(value))


def cosine(first: Vector, second: Vector) -> float:
    """Return the cosine of two vectors (D,); 0 where one of them is all zero."""
    a, b = first.astype(np.float64), second.astype(np.float64)
    lengths = math.sqrt(math.fsum(a * a)) * math.sqrt(math.fsum(b * b))
    return math.fsum(a * b) / lengths if lengths else 0.0


# --- texts to ids ------------------------------------------------------------------------------------------------------------


def _vector_inputs(served: Served, request: PairsRequest) -> tuple[Ids, ...]:
    """Return the ids of the first texts, of which one is enough if all are the same, and of the second ones."""
    firsts = [first for first, _ in request.pairs]
    firsts = firsts[:1] if all(first == firsts[0] for first in firsts) else firsts
    query, document = prompt_of(served, "query"), prompt_of(served, "document")
    return tuple(
        _cut(served, _framed(served, item, prompt), request.longest, item.place)
        for items, prompt in ((firsts, query), ([second for _, second in request.pairs], document))
        for item in items
    )


def _one(served: Served, item: Input, request: ClassifyRequest) -> Ids:
    return _cut(served, _framed(served, item, ""), request.longest, item.place)


def _framed(served: Served, item: Input, prompt: str) -> Ids:
    content = prompt + str(item.content)
    _check_text(served, item, content)
    return tuple(framed(served.tokenizer, served.tokenizer.encode(content)))


def _check_text(served: Served, item: Input, content: str) -> None:
    """Refuse a text that is too long to be encoded at all."""
    check_length(served.tokenizer, len(content), served.backend.info().context_tokens, item.place)


def _cut(served: Served, ids: Ids, longest: int | None, place: str) -> Ids:
    """Return the ids, cut before those that end a text if the request says so; raises ContextLengthExceeded."""
    most = _most(served, longest)
    if len(ids) <= most:
        return ids
    if longest is None:
        raise ContextLengthExceeded.of_prompt(f"{place} has {len(ids)} tokens", most, param=place, answer=False)
    end = 1 if served.tokenizer.add_eos else 0
    return (*ids[: max(most - end, 0)], *ids[len(ids) - end :])


def _most(served: Served, longest: int | None) -> int:
    context = served.backend.info().context_tokens
    return context if longest is None or longest == -1 else min(longest, context)


def _pair_inputs(served: Served, request: PairsRequest) -> tuple[Ids, ...]:
    """Return the ids of every pair."""
    return tuple(_pair(served, request, first, second) for first, second in request.pairs)


def _pair(served: Served, request: PairsRequest, first: Input, second: Input) -> Ids:
    for item in (first, second):
        _check_text(served, item, str(item.content))
    before, query, document, after = _parts(served, str(first.content), str(second.content))
    document = document[: request.per_document]
    most = _most(served, request.longest)
    room = most - len(before) - len(query) - len(after)
    if len(document) > room and (request.longest is None or room < 1):
        place = first.place if room < 1 else second.place
        words = f"{place} has {most - room + len(document)} tokens with its pair"
        raise ContextLengthExceeded.of_prompt(words, most, param=place, answer=False)
    return (*before, *query, *document[: max(room, 0)], *after)


def _parts(served: Served, first: str, second: str) -> tuple[Ids, Ids, Ids, Ids]:
    """Return the ids before a pair, of the first text and what separates it, of the second text, and after it.

    A decoder reads both texts as one, whose ids are cut where the first one's end.
    """
    assert served.scores is not None
    tokenizer, around = served.tokenizer, served.scores.around
    if around is None:
        before, between, after = served.scores.pair
        return before, (*tokenizer.encode(first), *between), tuple(tokenizer.encode(second)), after
    begin, text, between_text, end = around
    before, after = (tuple(tokenizer.encode_with_specials(spelled)) for spelled in (begin, end))
    beginning = text + first + between_text
    whole, head = tuple(tokenizer.encode(beginning + second)), len(tokenizer.encode(beginning.rstrip()))
    return before, whole[:head], whole[head:], after
