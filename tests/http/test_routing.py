"""The table of routes: exact, HEAD by GET, 404, 405 with Allow, OPTIONS; path tricks find nothing."""

import pytest

from tests.kit.http.memory_http import memory_server
from tlserve.http.messages import Request, Response, parse_target
from tlserve.http.responder import Responder
from tlserve.http.routing import Found, Route, Router, Unknown, WrongMethod


async def show(request: Request, responder: Responder) -> None:
    await responder.send(Response(200, repr(sorted(request.params.items())).encode()))


async def other(request: Request, responder: Responder) -> None:
    await responder.send(Response(200, b"other"))


ROUTES = [
    Route("GET", "/v1/models/{id}", show),
    Route("GET", "/v1/models", show),
    Route("POST", "/v1/chat/completions", show),
    Route("GET", "/v1/models/special", other),
    Route("DELETE", "/v1/models/{id}", other),
    Route("GET", "/files/{name}/at/{path+}", show),
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
        ("GET", "/files/a/at/b", "/files/{name}/at/{path+}", {"name": "a", "path": "b"}),
        ("GET", "/files/a/at/b/c", "/files/{name}/at/{path+}", {"name": "a", "path": "b/c"}),
        ("GET", "/files/a/at/", Unknown(), None),
        ("GET", "/files/a/at", Unknown(), None),
        ("GET", "/v1/models/", Unknown(), None),
        ("GET", "//v1/models", Unknown(), None),
        ("GET", "/v1//models", Unknown(), None),
        ("GET", "/v1/../v1/models", Unknown(), None),
        ("GET", "/v1/./models", Unknown(), None),
        ("GET", "/V1/models", Unknown(), None),
        ("GET", "/v1%2Fmodels", Unknown(), None),
        ("GET", "/v1/models%00", Unknown(), None),
        ("GET", "/", Unknown(), None),
        ("GET", "*", Unknown(), None),
        ("get", "/v1/models", WrongMethod(("GET", "HEAD", "OPTIONS")), None),
        ("POST", "/v1/models", WrongMethod(("GET", "HEAD", "OPTIONS")), None),
        ("GET", "/v1/chat/completions", WrongMethod(("OPTIONS", "POST")), None),
        ("HEAD", "/v1/chat/completions", WrongMethod(("OPTIONS", "POST")), None),
        ("PUT", "/v1/models/a", WrongMethod(("DELETE", "GET", "HEAD", "OPTIONS")), None),
    ],
)
def test_a_method_and_a_path_match_exactly_one_row_or_none(
    method: str, target: str, pattern: str | Unknown | WrongMethod, params: dict[str, str] | None
) -> None:
    for routes in (ROUTES, ROUTES[::-1]):
        match = Router(routes).match(method, parse_target(target).segments)
        if isinstance(match, Found):
            assert (match.route.pattern, match.params) == (pattern, params)
        else:
            assert match == pattern


def test_a_pattern_must_begin_with_a_slash() -> None:
    with pytest.raises(ValueError, match="slash"):
        Route("GET", "v1", show)


@pytest.mark.spec("HTTP-23")
@pytest.mark.parametrize(
    ("method", "target", "status", "allow"),
    [
        ("GET", "/nowhere", 404, None),
        ("POST", "/v1/models", 405, "GET, HEAD, OPTIONS"),
        ("OPTIONS", "/v1/models", 204, "GET, HEAD, OPTIONS"),
        ("OPTIONS", "*", 204, "DELETE, GET, HEAD, OPTIONS, POST"),
        ("OPTIONS", "/nowhere", 404, None),
        ("GET", "/v1/models/x", 200, None),
        ("HEAD", "/v1/models/x", 200, None),
    ],
)
async def test_the_router_answers_for_what_has_no_endpoint(
    method: str, target: str, status: int, allow: str | None
) -> None:
    async with memory_server(Router(ROUTES)) as server:
        answer = await server.request(method, target)
    assert (answer.status, answer.headers.get("allow")) == (status, allow)


async def test_the_endpoint_sees_what_the_names_stand_for() -> None:
    async with memory_server(Router(ROUTES)) as server:
        answer = await server.request("GET", "/files/a/at/b/c")
    assert answer.body == b"[('name', 'a'), ('path', 'b/c')]"
