"""The errors of an exchange."""

from tlserve.endpoints.exchange import describe_fault, error_headers
from tlserve.errors import Draining
from tlserve.http.messages import HttpFault


def test_an_error_inside_groups_of_one_is_unwrapped() -> None:
    error = ExceptionGroup("outer", [ExceptionGroup("inner", [Draining("stopping", retry_after_s=4)])])
    answer = describe_fault(error)
    assert (answer.status, answer.code) == (503, "draining")
    assert ("Retry-After", "4") in error_headers(answer, error)


def test_several_errors_at_once_are_an_unexpected_fault() -> None:
    answer = describe_fault(ExceptionGroup("both", [Draining("a"), Draining("b")]))
    assert (answer.status, answer.code) == (500, "internal_error")


def test_a_fault_of_http_keeps_its_own_headers_and_retry_after() -> None:
    fault = HttpFault(503, "busy", None, [("Retry-After", "9"), ("X-Other", "1")])
    headers = error_headers(describe_fault(fault), fault)
    assert [value for name, value in headers if name == "Retry-After"] == ["9"]
    assert ("X-Other", "1") in headers
