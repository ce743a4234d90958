"""The one table of statuses, types and codes."""

import inspect
import json

import pytest

from tlserve import errors
from tlserve.api.errors import TABLE, describe_error, describe_http_fault
from tlserve.openai.errors import error_document

ROWS = [
    (errors.ClientError("x", param="p"), 400, "invalid_request_error", None),
    (errors.ClientError("x", code="odd"), 400, "invalid_request_error", "odd"),
    (errors.ContextLengthExceeded("x"), 400, "invalid_request_error", "context_length_exceeded"),
    (errors.Refusal("x", param="p"), 422, "invalid_request_error", "unsupported_parameter"),
    (errors.ModelNotFound("x"), 404, "invalid_request_error", "model_not_found"),
    (errors.KvHandleNotFound("x"), 404, "invalid_request_error", "kv_handle_not_found"),
    (errors.CancelledById(), 499, "invalid_request_error", "cancelled"),
    (errors.Overloaded("x"), 429, "rate_limit_error", "rate_limit_exceeded"),
    (errors.NoCapacity("x"), 503, "server_error", "no_capacity"),
    (errors.Draining("x"), 503, "server_error", "draining"),
    (errors.DeadlineExceeded("x"), 504, "server_error", "deadline_exceeded"),
    (errors.EngineFailed("x"), 500, "server_error", "engine_failed"),
    (errors.DrainCut("x"), 503, "server_error", "draining"),
    (KeyError("x"), 500, "server_error", "internal_error"),
]


@pytest.mark.spec("API-31")
@pytest.mark.parametrize(("error", "status", "kind", "code"), ROWS, ids=lambda value: type(value).__name__)
def test_each_error_has_its_status_type_and_code(error: Exception, status: int, kind: str, code: str | None) -> None:
    answer = describe_error(error)
    assert (answer.status, answer.type, answer.code) == (status, kind, code)
    fields = json.loads(error_document(answer))["error"]
    assert fields == {"message": answer.message, "type": kind, "param": answer.param, "code": code}


@pytest.mark.spec("API-31")
def test_every_error_of_a_request_has_a_row_of_its_own() -> None:
    ours = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.TlserveError)]
    of_requests = [
        kind for kind in ours if not issubclass(kind, errors.OperatorError) and kind is not errors.TlserveError
    ]
    assert set(of_requests) <= set(TABLE)


def test_a_new_error_class_answers_like_its_base_class() -> None:
    class Narrower(errors.ModelNotFound):
        pass

    assert describe_error(Narrower("x")).status == 404


@pytest.mark.spec("API-32")
def test_every_429_and_503_and_nothing_else_has_retry_after() -> None:
    answers = [describe_error(error) for error, *_ in ROWS] + [describe_http_fault(status, "x") for status in FAULTS]
    advised = {answer.status for answer in answers if answer.retry_after_s is not None}
    assert advised == {429, 503}
    assert all(answer.retry_after_s is not None for answer in answers if answer.status in advised)


FAULTS = (400, 404, 408, 413, 429, 431, 500, 503)


@pytest.mark.spec("API-31")
@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (400, "invalid_request_error", None),
        (401, "authentication_error", "invalid_api_key"),
        (403, "authentication_error", "api_key_not_allowed"),
        (404, "invalid_request_error", "not_found"),
        (405, "invalid_request_error", "method_not_allowed"),
        (408, "invalid_request_error", "request_timeout"),
        (413, "invalid_request_error", "request_too_large"),
        (415, "invalid_request_error", "unsupported_media_type"),
        (417, "invalid_request_error", "expectation_failed"),
        (429, "rate_limit_error", "rate_limit_exceeded"),
        (431, "invalid_request_error", "headers_too_large"),
        (500, "server_error", None),
        (501, "server_error", None),
        (503, "server_error", "unavailable"),
    ],
)
def test_each_fault_of_http_has_its_type_and_code(status: int, kind: str, code: str | None) -> None:
    answer = describe_http_fault(status, "x")
    assert (answer.status, answer.type, answer.code, answer.message) == (status, kind, code, "x")
