"""The table of routes: exact, HEAD by GET, 404, 405 with Allow, OPTIONS; path tricks find nothing."""

import pytest

from tlserve.http.messages import HttpFault, Request, Response, parse_target
from tlserve.http.routing import Route, RouteFound, Router, UnknownPath, WrongMethod, answer_without_endpoint

ROUTES = [
    Route("GET", "/v1/models/{id}", "show"),
    Route("GET", "/v1/models", "list"),
    Route("POST", "/v1/chat/completions", "chat"),
    Route("GET", "/v1/models/special", "special"),
    Route("DELETE", "/v1/models/{id}", "delete"),
    Route("GET", "/files/{name}/at/{path+}", "file"),
]


@pytest.mark.spec("HTTP-5")
@pytest.mark.parametrize(
    ("method", "target", "pattern", "params"),
    [
        ("GET", "/v1/models", "/v1/models", {}),
        ("HEAD", "/v1/models", "/v1/models", {}),
        ("GET", "/v1/models?x=1", "/v1/models", {}),
        ("GET", "/v1/models/a", "/v1/models/{id}", {"id": "a"}),
        ("GET", "/v1/models/a%2Fb", "/v1/models/{id}", {"id": "a/b"}),
        ("GET", "/v1/models/..", "/v1/models/{id}", {"id": ".."}),
        ("GET", "/v1/models/special", "/v1/models/special", {}),
        ("DELETE", "/v1/models/special", "/v1/models/{id}", {"id": "special"}),
        ("GET", "/files/a/at/b", "/files/{name}/at/{path+}", {"name": "a", "path": "b"}),
        ("GET", "/files/a/at/b/c", "/files/{name}/at/{path+}", {"name": "a", "path": "b/c"}),
        ("GET", "/files/a/at/", UnknownPath(), None),
        ("GET", "/files/a/at", UnknownPath(), None),
        ("GET", "/v1/models/", UnknownPath(), None),
        ("GET", "//v1/models", UnknownPath(), None),
        ("GET", "/v1//models", UnknownPath(), None),
        ("GET", "/v1/../v1/models", UnknownPath(), None),
        ("GET", "/v1/./models", UnknownPath(), None),
        ("GET", "/V1/models", UnknownPath(), None),
        ("GET", "/v1%2Fmodels", UnknownPath(), None),
        ("GET", "/v1/models%00", UnknownPath(), None),
        ("GET", "/", UnknownPath(), None),
        ("GET", "*", UnknownPath(), None),
        ("OPTIONS", "*", WrongMethod(("DELETE", "GET", "HEAD", "OPTIONS", "POST")), None),
        ("get", "/v1/models", WrongMethod(("GET", "HEAD", "OPTIONS")), None),
        ("POST", "/v1/models", WrongMethod(("GET", "HEAD", "OPTIONS")), None),
        ("GET", "/v1/chat/completions", WrongMethod(("OPTIONS", "POST")), None),
        ("HEAD", "/v1/chat/completions", WrongMethod(("OPTIONS", "POST")), None),
        ("PUT", "/v1/models/a", WrongMethod(("DELETE", "GET", "HEAD", "OPTIONS")), None),
    ],
)
def test_a_method_and_a_path_match_exactly_one_row_or_none(
    method: str, target: str, pattern: str | UnknownPath | WrongMethod, params: dict[str, str] | None
) -> None:
    for routes in (ROUTES, ROUTES[::-1]):
        match = Router(routes).match(method, parse_target(target).segments)
        if isinstance(match, RouteFound):
            assert (match.route.pattern, match.params) == (pattern, params)
        else:
            assert match == pattern


def test_a_pattern_must_begin_with_a_slash() -> None:
    with pytest.raises(ValueError, match="slash"):
        Route("GET", "v1", "list")


def test_of_two_equal_rows_the_first_serves() -> None:
    match = Router([Route("GET", "/v1", "first"), Route("GET", "/v1", "second")]).match("GET", ("", "v1"))
    assert isinstance(match, RouteFound)
    assert (match.route.endpoint, match.route.name) == ("first", "GET /v1")


def answer_to(method: str, target: str) -> Response:
    segments = parse_target(target).segments
    match = Router(ROUTES).match(method, segments)
    assert not isinstance(match, RouteFound)
    return answer_without_endpoint(match, Request(method=method, target=target, segments=segments), "look elsewhere")


@pytest.mark.spec("HTTP-23")
@pytest.mark.parametrize(
    ("target", "allow"), [("/v1/models", "GET, HEAD, OPTIONS"), ("*", "DELETE, GET, HEAD, OPTIONS, POST")]
)
def test_options_is_answered_with_the_methods_of_the_path(target: str, allow: str) -> None:
    assert answer_to("OPTIONS", target) == Response(204, b"", [("Allow", allow)])


@pytest.mark.spec("HTTP-23")
def test_a_wrong_method_is_405_and_names_the_right_ones() -> None:
    with pytest.raises(
        HttpFault, match=r"^POST is not allowed at this path; send one of GET, HEAD, OPTIONS$"
    ) as raised:
        answer_to("POST", "/v1/models")
    assert (raised.value.status, raised.value.headers) == (405, (("Allow", "GET, HEAD, OPTIONS"),))


@pytest.mark.spec("HTTP-23")
@pytest.mark.parametrize("method", ["GET", "OPTIONS"])
def test_an_unknown_path_is_404_and_says_where_to_look(method: str) -> None:
    with pytest.raises(HttpFault, match=r"^there is nothing at '/nowhere'; look elsewhere$") as raised:
        answer_to(method, "/nowhere")
    assert raised.value.status == 404
