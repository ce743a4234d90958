"""The OpenAPI document against a live server: generated requests get no 5xx, no undocumented status, and valid answers.

Schemathesis makes the requests, those that fit the document and those that do not. They are the same in every run; run more, or
others, with `TL_OPENAPI_EXAMPLES=1000 TL_OPENAPI_SEED=7`.
"""

import copy
import os
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
import yaml
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from docs.make.openapi import openapi_document, openapi_text
from docs.make.operations import OPERATIONS
from tlserve.endpoints.api import ROUTES
from tlserve.testing import serve_in_thread

EXAMPLES = int(os.environ.get("TL_OPENAPI_EXAMPLES", "60"))
SEED = int(os.environ.get("TL_OPENAPI_SEED", "1"))

load_all_checks()
ALWAYS = [
    *("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance"),
    "response_headers_conformance",
]
NOT_FITTING = [*ALWAYS, "negative_data_rejection"]


def or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def tagged(tag: str) -> dict[str, Any]:
    """Return the schema of an optional object whose type is `tag`."""
    return or_null({"type": "object", "required": ["type"], "properties": {"type": {"const": tag}}})


NONE_OF_THEM = or_null({"type": "array", "maxItems": 0})


def document_of_succ() -> dict[str, Any]:
    """Return the document, with the only served model and the values that it accepts.

    Its vectors have their own size, it does not reason, and its context is too short for tools or a continued message.
    Deadlines are left out, because meeting them is not a matter of form; so is best_of, which must equal n.
    """
    document = copy.deepcopy(openapi_document())
    for operations in document["paths"].values():
        for operation in operations.values():
            operation["parameters"] = [p for p in operation["parameters"] if "Deadline" not in p.get("$ref", "")]
    for name, schema in document["components"]["schemas"].items():
        if name.endswith("Request"):
            schema["properties"]["model"] = {"type": "string", "const": "succ"}
            for field in ("timeout", "best_of"):
                schema["properties"].pop(field, None)
    document["components"]["schemas"]["EmbeddingsRequest"]["properties"]["dimensions"] = {
        "type": "integer",
        "const": 256,
    }
    chat = document["components"]["schemas"]["ChatRequest"]["properties"]
    chat["tools"] = {"type": "array", "maxItems": 0}
    chat["enable_thinking"] = chat["continue_final_message"] = {"const": False}
    chat["reasoning_effort"] = {"const": "none"}
    # True is not served for a chat: its template has the special tokens.
    document["components"]["schemas"]["TokenizeRequest"]["properties"]["add_special_tokens"] = {"const": False}
    for name in ("MessageRequest", "MessageTokensRequest"):  # a format is a schema, of which few random ones are served
        body = document["components"]["schemas"][name]["properties"]
        body["tools"] = NONE_OF_THEM
        body["tool_choice"] = tagged("auto")
        body["thinking"] = tagged("disabled")
        for field in ("output_config", "output_format"):
            body.pop(field)
    for name in ("ResponseRequest", "ResponseTokensRequest"):
        body = document["components"]["schemas"][name]["properties"]
        body["tools"] = NONE_OF_THEM
        body["tool_choice"] = or_null({"const": "auto"})
        body["text"] = or_null({"type": "object", "properties": {"format": tagged("text")}})
        body["reasoning"] = or_null({"type": "object", "properties": {"effort": or_null({"const": "none"})}})
        body["enable_thinking"] = {"const": False}
        for field in ("previous_response_id", "store", "stream_options", "top_logprobs"):
            body.pop(field, None)
    for name in ("OllamaChatRequest", "OllamaTextRequest"):
        body = document["components"]["schemas"][name]["properties"]
        for field in ("think", "format"):
            body.pop(field)
        if "tools" in body:
            body["tools"] = NONE_OF_THEM
    document["components"]["schemas"]["OllamaVectorsRequest"]["properties"]["dimensions"] = or_null({"const": 256})
    return document


def streaming(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document of the requests that ask for a stream and its usage."""
    for name in ("ChatRequest", "CompletionRequest"):
        body = document["components"]["schemas"][name]
        body["required"] = [*body["required"], "stream", "stream_options"]
        body["properties"]["stream"] = {"const": True}
        body["properties"]["stream_options"] = {
            "type": "object",
            "required": ["include_usage"],
            "properties": {"include_usage": {"type": "boolean"}},
        }
    for name in ("MessageRequest", "ResponseRequest"):
        body = document["components"]["schemas"][name]
        body["required"] = [*body["required"], "stream"]
        body["properties"]["stream"] = {"const": True}
    return document


SCHEMA = schemathesis.openapi.from_dict(document_of_succ())
STREAMS = schemathesis.openapi.from_dict(streaming(document_of_succ()))
OPERATION_KEYS = [(pattern.replace("+}", "}"), method) for method, pattern in OPERATIONS]

WITH_BODIES = [(pattern, method) for (method, pattern), operation in OPERATIONS.items() if operation.body is not None]


@pytest.fixture(scope="module")
def live():
    with serve_in_thread("succ", settings={"engine.context_tokens": 64}) as server, requests.Session() as session:
        yield f"http://{server.address}", session


def run(live: Any, operation: Any, mode: GenerationMode, checks: list[str]) -> set[int]:
    base_url, session = live
    seen: set[int] = set()

    @hypothesis.seed(SEED)
    @hypothesis.settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(operation.as_strategy(generation_mode=mode))
    def ask(case: schemathesis.Case) -> None:
        response = case.call(base_url=base_url, session=session)
        seen.add(response.status_code)
        case.validate_response(response, checks=CHECKS.get_by_names(checks))

    ask()
    return seen


MOSTLY_REFUSED = {"/v1/tokenize", "/tokenize", "/v1/messages", "/v1/responses", "/v1/rerank", "/v2/rerank", "/rerank"}
"""Most random bodies have none or two of the inputs of which the first two take one, or are too long for the context; the model
of this server does not rerank."""


OF_OTHER_MODELS = {"/v1/classify", "/classify", "/embed", "/infill"}
"""What the model of this server cannot do, for some or all bodies: it has no labels, its vectors have one length, and its
vocabulary has no tokens for filling in."""


@pytest.mark.slow
@pytest.mark.spec("API-46")
@pytest.mark.parametrize(("path", "method"), OPERATION_KEYS)
def test_requests_that_fit_the_document_get_documented_answers(live: Any, path: str, method: str) -> None:
    """Some can be refused for rules between fields or the length of the context, none for a value that is not served."""
    seen = run(live, SCHEMA[path][method], GenerationMode.POSITIVE, ALWAYS)
    assert seen <= {200, 400, 404} | ({422} if path in OF_OTHER_MODELS else set())
    if path not in MOSTLY_REFUSED | OF_OTHER_MODELS:
        assert (200 in seen) == ("{id}" not in path)


@pytest.mark.slow
@pytest.mark.spec("API-118")
@pytest.mark.parametrize(("path", "method"), WITH_BODIES)
def test_requests_that_do_not_fit_the_document_get_documented_refusals(live: Any, path: str, method: str) -> None:
    seen = run(live, SCHEMA[path][method], GenerationMode.NEGATIVE, NOT_FITTING)
    assert seen & {400, 422}


@pytest.mark.slow
@pytest.mark.spec("API-46")
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"])
def test_every_event_of_a_stream_is_a_chunk_of_the_document(live: Any, path: str) -> None:
    assert 200 in run(live, STREAMS[path]["POST"], GenerationMode.POSITIVE, ALWAYS)


@pytest.mark.spec("API-45")
def test_every_route_is_documented_and_every_documented_route_is_there() -> None:
    assert list(OPERATIONS) == list(ROUTES)


@pytest.mark.spec("API-45")
def test_the_text_of_the_openapi_document_is_yaml() -> None:
    assert yaml.safe_load(openapi_text()) == openapi_document()


@pytest.mark.spec("API-45")
def test_the_openapi_document_is_valid() -> None:
    schemathesis.openapi.from_dict(openapi_document()).validate()
