"""Headers and request targets as values."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tlserve.http.messages import Headers, HttpFault, Request, Response, parse_target, render_plain_fault


def test_headers_are_found_without_case_and_keep_their_order() -> None:
    headers = Headers([("A", "1"), ("b", "2"), ("a", "3")])
    assert headers.get("a") == "1"
    assert headers.get_all("A") == ("1", "3")
    assert headers.get("c", "none") == "none"
    assert "B" in headers
    assert list(headers.adding(("C", "4"))) == [("A", "1"), ("b", "2"), ("a", "3"), ("C", "4")]


def test_tokens_are_the_members_of_all_fields_in_lower_case() -> None:
    assert Headers([("TE", "A, b"), ("te", " ,C")]).tokens("te") == ("a", "b", "c")


@pytest.mark.spec("HTTP-5")
@pytest.mark.parametrize(
    ("target", "segments", "path", "query"),
    [
        ("/", ("", ""), "/", ""),
        ("/v1/models", ("", "v1", "models"), "/v1/models", ""),
        ("/v1/models/", ("", "v1", "models", ""), "/v1/models/", ""),
        ("//v1", ("", "", "v1"), "//v1", ""),
        ("/a/../b/./c", ("", "a", "..", "b", ".", "c"), "/a/../b/./c", ""),
        ("/a%2Fb/c", ("", "a/b", "c"), "/a%2Fb/c", ""),
        ("/caf%C3%A9?x=%20&y#", None, None, None),
        ("/caf%C3%A9?x=%20&y?z", ("", "café"), "/café", "x=%20&y?z"),
        ("http://host:80/a?b", ("", "a"), "/a", "b"),
        ("HTTPS://host", ("", ""), "/", ""),
        ("http://host?b", None, None, None),
        ("*", ("*",), "*", ""),
        ("host:80", None, None, None),
        ("a/b", None, None, None),
        ("/%", None, None, None),
        ("/%4", None, None, None),
        ("/%zz", None, None, None),
        ("/%ff", None, None, None),
    ],
)
def test_a_target_is_parsed_exactly_or_refused(
    target: str, segments: tuple[str, ...] | None, path: str | None, query: str | None
) -> None:
    if segments is None:
        with pytest.raises(HttpFault) as caught:
            parse_target(target)
        assert caught.value.status == 400
        return
    parsed = parse_target(target)
    assert (parsed.segments, parsed.query) == (segments, query)
    assert Request(method="GET", target=target, segments=parsed.segments).path == path


@given(st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=40))
def test_any_target_is_parsed_or_a_400(target: str) -> None:
    status = 400
    try:
        parse_target(target)
    except HttpFault as fault:
        status = fault.status
    assert status == 400


async def test_a_request_without_a_connection_has_a_fixed_body() -> None:
    assert await Request(method="GET", target="/", segments=("", "")).read_body() == b""


def test_a_fault_is_shown_as_a_line_of_text_with_its_headers() -> None:
    answer = render_plain_fault(HttpFault(405, "no", headers=[("Allow", "GET")]))
    assert answer == Response(405, b"no\n", Headers([("Content-Type", "text/plain; charset=utf-8"), ("Allow", "GET")]))
