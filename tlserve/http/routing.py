"""Which endpoint answers which method and path.

Owns the table and the match, which is pure and exact: nothing is normalised, case and slashes count. Refuses to know what
endpoints do. Source: RFC 9110 sections 9.3.2 (HEAD), 9.3.7 (OPTIONS), 15.5.5 (404), 15.5.6 (405 with Allow).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import attrs

from tlserve.http.exchange import Handler
from tlserve.http.messages import HttpFault, Request, Response
from tlserve.http.responder import Responder


def _segments(pattern: str) -> tuple[str, ...]:
    if not pattern.startswith("/"):
        raise ValueError(f"the pattern {pattern!r} must begin with a slash")
    return tuple(pattern.split("/"))


@attrs.frozen
class Route:
    """One row: `pattern` is a path with `{name}` for one segment, or `{name+}` at its end for one or more."""

    method: str
    pattern: str
    endpoint: Handler
    segments: tuple[str, ...] = attrs.field(init=False, repr=False)

    @segments.default
    def _split(self) -> tuple[str, ...]:
        return _segments(self.pattern)

    def match(self, segments: tuple[str, ...]) -> dict[str, str] | None:
        """Return what the names stand for in a decoded path, or None where the path is another one."""
        wanted, rest = self.segments, self.segments[-1]
        if rest.endswith("+}") and len(segments) >= len(wanted):
            segments = (*segments[: len(wanted) - 1], "/".join(segments[len(wanted) - 1 :]))
        if len(segments) != len(wanted):
            return None
        params: dict[str, str] = {}
        for want, got in zip(wanted, segments, strict=True):
            if want.startswith("{") and got:
                params[want.strip("{+}")] = got
            elif want != got:
                return None
        return params


@attrs.frozen
class Found:
    """The path and the method have an endpoint."""

    route: Route
    params: Mapping[str, str]


@attrs.frozen
class WrongMethod:
    """The path is there, but not for this method; `allow` are those it has."""

    allow: tuple[str, ...]


@attrs.frozen
class Unknown:
    """No route has this path."""


Match = Found | WrongMethod | Unknown


class Router:
    """A table of routes that is itself a handler. A row with a fixed path goes before one with names, whatever the order."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(sorted(routes, key=lambda route: route.pattern.count("{")))

    def match(self, method: str, segments: tuple[str, ...]) -> Match:
        """Find the endpoint of `method` and a decoded path; HEAD is served by GET."""
        wanted = "GET" if method == "HEAD" else method
        found = [(route, params) for route in self.routes if (params := route.match(segments)) is not None]
        for route, params in found:
            if route.method == wanted:
                return Found(route, params)
        return WrongMethod(_allowed(route for route, _ in found)) if found else Unknown()

    async def __call__(self, request: Request, responder: Responder) -> None:
        """Answer `request` by its endpoint; raises `HttpFault` 404 or 405, and answers OPTIONS with Allow."""
        match = self.match(request.method, request.segments)
        if isinstance(match, Found):
            await match.route.endpoint(attrs.evolve(request, params=match.params), responder)
        elif request.method == "OPTIONS":
            await responder.send(Response(204, b"", [("Allow", ", ".join(self._options(request, match)))]))
        elif isinstance(match, WrongMethod):
            allow = ", ".join(match.allow)
            raise HttpFault(
                405, f"{request.method} is not a method of this path; it has {allow}", None, [("Allow", allow)]
            )
        else:
            raise HttpFault(404, "there is nothing at this path")

    def _options(self, request: Request, match: WrongMethod | Unknown) -> tuple[str, ...]:
        if isinstance(match, WrongMethod):
            return match.allow
        if request.segments == ("*",):
            return _allowed(self.routes)
        raise HttpFault(404, "there is nothing at this path")


def _allowed(routes: Iterable[Route]) -> tuple[str, ...]:
    methods = {route.method for route in routes} | {"OPTIONS"}
    return tuple(sorted(methods | ({"HEAD"} if "GET" in methods else set())))
