"""Which servers can be measured, and the headers of every request to them."""

import pytest

from tlserve.bench.target import parse_target
from tlserve.errors import OperatorError


@pytest.mark.spec("BENCH-10")
@pytest.mark.parametrize(
    ("url", "address", "path"),
    [
        ("http://127.0.0.1:8000", "127.0.0.1:8000", "/v1/models"),
        ("http://127.0.0.1:8000/", "127.0.0.1:8000", "/v1/models"),
        ("http://127.0.0.1:8000/v1", "127.0.0.1:8000", "/v1/models"),
        ("http://127.0.0.1:8000/v1/", "127.0.0.1:8000", "/v1/models"),
        ("http://gateway/llm/a", "gateway:80", "/llm/a/v1/models"),
        ("http://gateway/llm/a/v1", "gateway:80", "/llm/a/v1/models"),
        ("http://[::1]:8000", "[::1]:8000", "/v1/models"),
        ("https://gateway/llm/a/v1", "gateway:443", "/llm/a/v1/models"),
        ("https://127.0.0.1:8443", "127.0.0.1:8443", "/v1/models"),
    ],
)
def test_an_address_with_or_without_v1_and_with_any_path_before_it(url, address, path):
    target = parse_target(url, name="t")
    assert target.origin.authority == address
    assert target.path("/models") == path


@pytest.mark.parametrize(
    "url", ["https://", "host:80", "http://", "http://host:port", "http://h/?a=b", "http://u@h", "ftp://h", ""]
)
def test_an_address_that_cannot_be_measured_is_refused(url):
    with pytest.raises(OperatorError, match="cannot be measured"):
        parse_target(url, name="t")


@pytest.mark.spec("BENCH-13")
def test_a_key_is_a_bearer_token_and_is_not_shown():
    target = parse_target("http://host", name="t", api_key="secret")
    assert ("Authorization", "Bearer secret") in target.headers
    assert "secret" not in repr(target)
    assert not any(name == "Authorization" for name, _ in parse_target("http://host", name="t").headers)
