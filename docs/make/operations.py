"""The body, the answer and the statuses of each route: the one table behind the OpenAPI document and the reference page.

Owns the descriptions and the statuses. Does not know how a route works: `tlserve.endpoints.api` has the functions, and a test
compares the two tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from tlserve.anthropic.requests import INPUT, MESSAGES
from tlserve.api.fields import Table
from tlserve.endpoints.routes.ollama_chat import LINES
from tlserve.ollama import requests as ollama
from tlserve.openai import field_tables
from tlserve.openai.infill import INFILL
from tlserve.responses.requests import COUNTED, RESPONSES
from tlserve.scoring import requests as scoring

STATUSES: Mapping[int, str] = {
    200: "the answer",
    400: "a wrong value, shape, header or framing; `param` names the field",
    401: "no API key, or a wrong one",
    403: "a key without access",
    404: "no such model, route or KV handle",
    408: "the request took too long to arrive",
    413: "the body is larger than max_body_bytes",
    415: "the body has a Content-Encoding",
    417: "an expectation other than 100-continue",
    422: "a known field with a value that is not served; `param` names it",
    429: "too many requests, or the queue is full; see Retry-After",
    431: "the headers are larger, or more, than the limits",
    499: "the request was cancelled by its id",
    500: "a fault of the server",
    503: "no capacity before the queue's deadline, or shutting down; see Retry-After",
    504: "the request's deadline passed before its answer was complete",
    507: "the model does not fit the memory for models",
}
RETRIED = (429, 503)
"""The statuses whose answers say when to retry."""

_READING = (200, 400, 401, 403, 413, 415, 417, 429, 431, 500, 503)
_POSTING = (200, 400, 401, 403, 404, 408, 413, 415, 417, 422, 429, 431, 499, 500, 503)
_WORKING = (*_POSTING, 504, 507)


@attrs.frozen
class Header:
    """A request header: its JSON schema, and its effect."""

    schema: Mapping[str, Any]
    about: str


_SWITCH = {"type": "string", "enum": ["", "0", "1"]}

HEADERS: Mapping[str, Header] = {
    "X-Request-Id": Header(
        {"type": "string"}, "returned if it is printable ASCII of 1 to 128 characters, else replaced"
    ),
    "X-TL-Priority": Header(
        {"type": "integer", "minimum": -100, "maximum": 100}, "priority in the queue; the default is 0"
    ),
    "X-TL-Strict": Header(_SWITCH, "1: an unknown field gets 400 instead of being ignored"),
    "X-TL-Return-Seed": Header(_SWITCH, "1: the answer has its seed in X-TL-Seed, which repeats the answer as `seed`"),
    "X-TL-Deadline-Ms": Header(
        {"type": "integer", "minimum": 1, "maximum": 999_999_999_999},
        "milliseconds from the arrival of the request to the end of its answer; then 504, or an error event in a stream",
    ),
    "X-TL-Progress": Header(
        _SWITCH,
        "1: a stream begins when the request is admitted, with comments about the queue and the prompt up to the first token; "
        "a later failure is an error event",
    ),
    "X-TL-Special-Tokens": Header(_SWITCH, "1: the text can contain control tokens"),
}

QUERIES: Mapping[str, Header] = {
    "stream": Header({"type": "boolean"}, "true: the events of the response instead of the response"),
    "starting_after": Header(
        {"type": "integer", "minimum": 0}, "the number of the event before the first one, with stream"
    ),
    "limit": Header({"type": "integer", "minimum": 1, "maximum": 100}, "the most items of a page; the default is 20"),
    "order": Header(
        {"type": "string", "enum": ["asc", "desc"]}, "the oldest or, as by default, the newest items first"
    ),
    "after": Header({"type": "string"}, "the id of the item before the first one"),
    "model": Header({"type": "string"}, "the model; the default is the only one"),
}
"""The parameters of queries."""

ANSWER_HEADERS: Mapping[str, str] = {
    "X-Request-Id": "the id of the request, or a new one",
    "X-TL-Ignored": "the names of unknown fields",
    "X-TL-Seed": "the seed of the answer, if the request has X-TL-Return-Seed",
    "Retry-After": "seconds to wait before a retry; with 429 and 503",
}


@attrs.frozen(kw_only=True)
class Operation:
    """One route. `answer` names a schema of `docs.make.answer_schemas`, `body` one of `BODIES`; None: the route has no body.

    `chunk` names the schema of the events with `stream` true, `error` that of an error;
    `media_type` is that of the stream. `query` names rows of `QUERIES`.
    """

    summary: str
    answer: str
    body: str | None = None
    headers: tuple[str, ...] = ("X-Request-Id",)
    chunk: str | None = None
    error: str = "Error"
    media_type: str = "text/event-stream"
    statuses: tuple[int, ...] = _POSTING
    query: tuple[str, ...] = ()


BODIES: Mapping[str, Table] = {
    "ChatRequest": field_tables.CHAT,
    "CompletionRequest": field_tables.COMPLETION,
    "InfillRequest": INFILL,
    "EmbeddingsRequest": field_tables.EMBEDDINGS,
    "RerankRequest": scoring.RERANK,
    "AnyRerankRequest": scoring.ANY_RERANK,
    "ScoreRequest": scoring.SCORE,
    "ClassifyRequest": scoring.CLASSIFY,
    "EmbedTextsRequest": scoring.TEI_EMBED,
    "ResponseRequest": RESPONSES,
    "ResponseTokensRequest": COUNTED,
    "MessageRequest": MESSAGES,
    "MessageTokensRequest": INPUT,
    "OllamaChatRequest": ollama.CHAT,
    "OllamaTextRequest": ollama.GENERATE,
    "OllamaVectorsRequest": ollama.EMBED,
    "OllamaVectorRequest": ollama.EMBEDDING,
    "OllamaModelRequest": ollama.SHOW,
    "TokenizeRequest": field_tables.TOKENIZE,
    "DetokenizeRequest": field_tables.DETOKENIZE,
}

_GENERATING = (
    *("X-Request-Id", "X-TL-Priority", "X-TL-Strict", "X-TL-Return-Seed", "X-TL-Deadline-Ms", "X-TL-Progress"),
)

_RERANK = Operation(
    summary="Score documents for a query, the best one first.",
    answer="Rerank",
    body="RerankRequest",
    headers=("X-Request-Id", "X-TL-Priority", "X-TL-Strict", "X-TL-Deadline-Ms"),
    statuses=_WORKING,
)
_SCORE = attrs.evolve(_RERANK, summary="Score pairs of texts, in order.", answer="Scores", body="ScoreRequest")
_CLASSIFY = attrs.evolve(
    _RERANK, summary="Score the labels of a model for each text.", answer="Classes", body="ClassifyRequest"
)

_TOKENIZE = Operation(
    summary="Turn a text into token ids, as for a completion, or a chat, as for its prompt.",
    answer="Tokens",
    body="TokenizeRequest",
    headers=("X-Request-Id", "X-TL-Strict", "X-TL-Special-Tokens"),
)
_DETOKENIZE = Operation(
    summary="Turn token ids into their text, including control tokens.",
    answer="Text",
    body="DetokenizeRequest",
    headers=("X-Request-Id", "X-TL-Strict"),
)

_OLLAMA_VECTORS = Operation(
    summary="Turn texts into unit vectors, in order, in the form of Ollama's API.",
    answer="OllamaVector",
    body="OllamaVectorRequest",
    headers=("X-Request-Id", "X-TL-Priority", "X-TL-Strict", "X-TL-Deadline-Ms"),
    error="OllamaError",
    statuses=_WORKING,
)

OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): Operation(
        summary="Continue a conversation with the assistant's next turn.",
        answer="ChatCompletion",
        body="ChatRequest",
        headers=_GENERATING,
        chunk="ChatCompletionChunk",
        statuses=_WORKING,
    ),
    ("POST", "/v1/completions"): Operation(
        summary="Continue one or several prompts; the choices of prompt i are i * n to i * n + n - 1.",
        answer="Completion",
        body="CompletionRequest",
        headers=(*_GENERATING, "X-TL-Special-Tokens"),
        chunk="CompletionChunk",
        statuses=_WORKING,
    ),
    ("POST", "/infill"): Operation(
        summary="Fill a gap in a text, in the form of llama.cpp's server; for models with tokens for this.",
        answer="Infill",
        body="InfillRequest",
        headers=(*_GENERATING, "X-TL-Special-Tokens"),
        chunk="InfillPiece",
        statuses=_WORKING,
    ),
    ("POST", "/v1/embeddings"): Operation(
        summary="Turn texts or token ids into unit vectors, in order.",
        answer="Embeddings",
        body="EmbeddingsRequest",
        headers=("X-Request-Id", "X-TL-Priority", "X-TL-Strict", "X-TL-Deadline-Ms"),
        statuses=_WORKING,
    ),
    ("POST", "/v1/rerank"): _RERANK,
    ("POST", "/v2/rerank"): _RERANK,
    ("POST", "/rerank"): attrs.evolve(
        _RERANK,
        summary="Score documents for a query, the best one first; with `texts` in the form of text-embeddings-inference.",
        answer="AnyRerank",
        body="AnyRerankRequest",
    ),
    ("POST", "/v1/score"): _SCORE,
    ("POST", "/score"): _SCORE,
    ("POST", "/v1/classify"): _CLASSIFY,
    ("POST", "/classify"): _CLASSIFY,
    ("POST", "/embed"): attrs.evolve(
        _RERANK,
        summary="Turn texts into vectors, in the form of text-embeddings-inference.",
        answer="Vectors",
        body="EmbedTextsRequest",
    ),
    ("POST", "/v1/chat/completions/input_tokens"): Operation(
        summary="Count the prompt tokens of a chat.",
        answer="InputTokens",
        body="ChatRequest",
        headers=("X-Request-Id", "X-TL-Strict"),
    ),
    ("POST", "/v1/responses"): Operation(
        summary="Continue a conversation with the assistant's next items, in the form of the Responses API.",
        answer="Response",
        body="ResponseRequest",
        headers=_GENERATING,
        chunk="ResponseEvent",
        statuses=_WORKING,
    ),
    ("POST", "/v1/responses/input_tokens"): Operation(
        summary="Count the prompt tokens of a response.",
        answer="ResponseTokens",
        body="ResponseTokensRequest",
        headers=("X-Request-Id", "X-TL-Strict"),
    ),
    ("GET", "/v1/responses/{id}"): Operation(
        summary="Return a response that is kept, or its stream.",
        answer="Response",
        query=("stream", "starting_after"),
        statuses=(*_READING, 404),
    ),
    ("DELETE", "/v1/responses/{id}"): Operation(
        summary="Delete a response that is kept.", answer="ResponseDeleted", statuses=(*_READING, 404)
    ),
    ("POST", "/v1/responses/{id}/cancel"): Operation(
        summary="Cancel a response that is made in the background.", answer="Response", statuses=(*_READING, 404)
    ),
    ("GET", "/v1/responses/{id}/input_items"): Operation(
        summary="List the items that a response was made from, a page at a time.",
        answer="ResponseItems",
        query=("limit", "order", "after"),
        statuses=(*_READING, 404),
    ),
    ("POST", "/v1/messages"): Operation(
        summary="Continue a conversation with the assistant's next message, in the form of the Messages API.",
        answer="AnswerMessage",
        body="MessageRequest",
        headers=_GENERATING,
        chunk="MessageEvent",
        error="MessageError",
        statuses=_WORKING,
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        summary="Count the prompt tokens of a message.",
        answer="MessageTokens",
        body="MessageTokensRequest",
        headers=("X-Request-Id", "X-TL-Strict"),
        error="MessageError",
    ),
    ("POST", "/v1/tokenize"): _TOKENIZE,
    ("POST", "/v1/detokenize"): _DETOKENIZE,
    ("POST", "/tokenize"): _TOKENIZE,
    ("POST", "/detokenize"): attrs.evolve(_DETOKENIZE, answer="TextOfOthers"),
    ("POST", "/api/chat"): Operation(
        summary="Continue a conversation with the assistant's next turn, in the form of Ollama's API.",
        answer="OllamaChat",
        body="OllamaChatRequest",
        headers=_GENERATING,
        chunk="OllamaChat",
        error="OllamaError",
        media_type=LINES.media_type,
        statuses=_WORKING,
    ),
    ("POST", "/api/generate"): Operation(
        summary="Continue a text, as a turn of the user or raw, in the form of Ollama's API.",
        answer="OllamaText",
        body="OllamaTextRequest",
        headers=(*_GENERATING, "X-TL-Special-Tokens"),
        chunk="OllamaText",
        error="OllamaError",
        media_type=LINES.media_type,
        statuses=_WORKING,
    ),
    ("POST", "/api/embed"): attrs.evolve(_OLLAMA_VECTORS, answer="OllamaVectors", body="OllamaVectorsRequest"),
    ("POST", "/api/embeddings"): _OLLAMA_VECTORS,
    ("POST", "/api/show"): Operation(
        summary="Return the template, the context and the capabilities of a model.",
        answer="OllamaModel",
        body="OllamaModelRequest",
        headers=("X-Request-Id", "X-TL-Strict"),
        error="OllamaError",
    ),
    ("GET", "/api/tags"): Operation(
        summary="List every model under each of its names.",
        answer="OllamaModels",
        error="OllamaError",
        statuses=_READING,
    ),
    ("GET", "/api/ps"): Operation(
        summary="List the models that are ready.", answer="OllamaRunning", error="OllamaError", statuses=_READING
    ),
    ("GET", "/api/version"): Operation(
        summary="Return the version of the server.", answer="OllamaVersion", error="OllamaError", statuses=_READING
    ),
    ("GET", "/v1/models"): Operation(
        summary="List every model under each of its names.", answer="Models", statuses=_READING
    ),
    ("GET", "/v1/models/{id+}"): Operation(
        summary="Return one model; its id can have slashes.", answer="Model", statuses=(*_READING, 404)
    ),
    ("GET", "/v1/requests"): Operation(
        summary="List the client's requests that are being answered, the oldest first.",
        answer="OpenRequests",
        statuses=_READING,
    ),
    ("GET", "/v1/requests/{id}"): Operation(
        summary="Return how far a request is; its id is its `X-Request-Id`.",
        answer="OpenRequest",
        statuses=(*_READING, 404),
    ),
    ("DELETE", "/v1/requests/{id}"): Operation(
        summary="Cancel a request: its answer ends with the error `cancelled`.",
        answer="OpenRequest",
        statuses=(*_READING, 404),
    ),
    ("GET", "/healthz"): Operation(
        summary="Report that the process is alive, and its arithmetic.", answer="Health", statuses=_READING
    ),
    ("GET", "/health"): Operation(
        summary="Report that every model is ready; else 503.", answer="Ready", statuses=_READING
    ),
    ("GET", "/version"): Operation(summary="Return the version of the server.", answer="Version", statuses=_READING),
    ("GET", "/load"): Operation(
        summary="Return the number of requests that run or wait.", answer="Load", statuses=_READING
    ),
    ("GET", "/props"): Operation(
        summary="Return the limits, the defaults and the template of a model, as llama.cpp does.",
        answer="Props",
        query=("model",),
        statuses=(*_READING, 404),
    ),
    ("POST", "/apply-template"): Operation(
        summary="Return the text of a chat's prompt, as llama.cpp does.",
        answer="Prompt",
        body="ChatRequest",
        headers=("X-Request-Id", "X-TL-Strict"),
    ),
    ("GET", "/tokenizer_info"): Operation(
        summary="Return the special tokens and the template of a model, as vLLM does.",
        answer="TokenizerInfo",
        query=("model",),
        statuses=(*_READING, 404),
    ),
}
