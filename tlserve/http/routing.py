"""Which endpoint answers which method and path, and the answer to a request that no endpoint has.

Owns the table and the match, which is pure and exact: nothing is normalised, case and slashes count. Does not know what
endpoints are. Source: RFC 9110 sections 9.3.2 (HEAD), 9.3.7 (OPTIONS), 15.5.5 (404), 15.5.6 (405 with Allow).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

import attrs

from tlserve.http.messages import HttpFault, Request, Response

Endpoint = TypeVar("Endpoint")

Segments = tuple[str, ...]
WHOLE_SERVER: Segments = ("*",)


def _segments(pattern: str) -> Segments:
    if not pattern.startswith("/"):
        raise ValueError(f"the pattern {pattern!r} must begin with a slash")
    return tuple(pattern.split("/"))


@attrs.frozen
class Route(Generic[Endpoint]):
    """One row: `pattern` is a path with `{name}` for one segment, or `{name+}` at its end for one or more.

    `name` is the row's name in settings, such as "GET /healthz".
    """

    method: str
    pattern: str
    endpoint: Endpoint
    name: str = attrs.field(init=False, repr=False)
    segments: Segments = attrs.field(init=False, repr=False)

    @name.default
    def _join(self) -> str:
        return f"{self.method} {self.pattern}"

    @segments.default
    def _split(self) -> Segments:
        return _segments(self.pattern)

    @property
    def is_fixed(self) -> bool:
        """Say whether the pattern is one path."""
        return "{" not in self.pattern

    def match(self, segments: Segments) -> dict[str, str] | None:
        """Return the values of the names for a decoded path, or None if the path does not fit."""
        expected, rest = self.segments, self.segments[-1]
        if rest.endswith("+}") and len(segments) >= len(expected):
            segments = (*segments[: len(expected) - 1], "/".join(segments[len(expected) - 1 :]))
        if len(segments) != len(expected):
            return None
        params: dict[str, str] = {}
        for want, got in zip(expected, segments, strict=True):
            if want.startswith("{") and got:
                params[want.strip("{+}")] = got
            elif want != got:
                return None
        return params


@attrs.frozen
class RouteFound(Generic[Endpoint]):
    """The path and the method have an endpoint; `params` are the values of the names in its pattern."""

    route: Route[Endpoint]
    params: Mapping[str, str]


@attrs.frozen
class WrongMethod:
    """The path exists, but not for this method; `allow` lists the methods that it has."""

    allow: tuple[str, ...]


@attrs.frozen
class UnknownPath:
    """No route has this path."""


class Router(Generic[Endpoint]):
    """A table of routes. A row with a fixed path goes before one with names, whatever their order."""

    def __init__(self, routes: Iterable[Route[Endpoint]]) -> None:
        self.routes = tuple(sorted(routes, key=lambda route: route.pattern.count("{")))
        self._fixed = {
            (route.method, route.segments): RouteFound(route, {}) for route in reversed(self.routes) if route.is_fixed
        }

    def match(self, method: str, segments: Segments) -> RouteFound[Endpoint] | WrongMethod | UnknownPath:
        """Find the endpoint of `method` and a decoded path; GET serves HEAD, and `OPTIONS *` has every method."""
        wanted = "GET" if method == "HEAD" else method
        return self._fixed.get((wanted, segments)) or self._search(wanted, segments)

    def _search(self, method: str, segments: Segments) -> RouteFound[Endpoint] | WrongMethod | UnknownPath:
        found = [(route, params) for route in self.routes if (params := route.match(segments)) is not None]
        for route, params in found:
            if route.method == method:
                return RouteFound(route, params)
        if method == "OPTIONS" and segments == WHOLE_SERVER:
            return WrongMethod(_allowed(self.routes))
        return WrongMethod(_allowed(route for route, _ in found)) if found else UnknownPath()


def _allowed(routes: Iterable[Route[Endpoint]]) -> tuple[str, ...]:
    methods = {route.method for route in routes} | {"OPTIONS"}
    return tuple(sorted(methods | ({"HEAD"} if "GET" in methods else set())))


def answer_without_endpoint(match: WrongMethod | UnknownPath, request: Request, remedy: str) -> Response:
    """Return the answer to OPTIONS; raises `HttpFault` 404, which ends in `remedy`, or 405."""
    if isinstance(match, UnknownPath):
        raise HttpFault(404, f"there is nothing at {request.path[:100]!a}; {remedy}")
    allow = ("Allow", ", ".join(match.allow))
    if request.method == "OPTIONS":
        return Response(204, b"", [allow])
    raise HttpFault(405, f"{request.method[:20]} is not allowed at this path; send one of {allow[1]}", None, [allow])
