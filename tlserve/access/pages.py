"""Requests that a web page makes a browser send: refused by a server that answers everybody on its own machine.

Without keys, a server on a loopback address trusts every program of its machine, and a browser is one of them. A page can send
requests across origins, and by DNS rebinding a page of a foreign name can even be of the same origin. Both show: `Origin` names
the page, and `Host` the name that the browser looked up. Owns these two checks. Pure. Sources: the Fetch standard, section 3.1
(Origin header), and its CORS-safelisted content types; RFC 6761 section 6.3 (localhost).
"""

from __future__ import annotations

import ipaddress
import re

import attrs

from tlserve.access.cors import ANY
from tlserve.http.messages import Headers, HttpFault

_AUTHORITY = re.compile(r"(?P<host>\[[0-9a-fA-F:.%]+\]|[^:\[\]/@]*)(?::[0-9]*)?")
_JSON = "application/json"
_SHOWN = 100


@attrs.frozen(kw_only=True)
class PageGuard:
    """The check of one server. `hosts` and `origins` are allowed in addition; "*" in one of them allows all of its kind.

    `checks_all`: only requests for this machine pass. Without it, only those that a page can send to any server without
    permission are refused.
    """

    checks_all: bool = False
    checks_forms: bool = False
    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    def check(self, headers: Headers) -> None:
        """Raise `HttpFault` 403 for a request that a page of another origin has caused."""
        if self.checks_all:
            self._check_host(headers)
        if self.checks_all or (self.checks_forms and not _is_json(headers)):
            self._check_origin(headers)

    def _check_host(self, headers: Headers) -> None:
        for host in headers.get_all("host"):  # none in HTTP/1.0, which no browser speaks
            name = _host_of(host)
            if not (ANY in self.hosts or name in self.hosts or _is_address(name) or _is_localhost(name)):
                raise HttpFault(
                    403,
                    f"the Host header names {host[:_SHOWN]!r}, and this server answers without a key only requests for "
                    "localhost or an IP address; use one of them, or add the name to access.allow_hosts",
                    code="host_not_allowed",
                )

    def _check_origin(self, headers: Headers) -> None:
        for origin in headers.get_all("origin"):
            if not (ANY in self.origins or origin in self.origins or self._is_own(origin, headers)):
                raise HttpFault(
                    403,
                    f"this request comes from a web page of the origin {origin[:_SHOWN]!r}, and pages of other origins cannot "
                    "use this server; add the origin to cors.allow_origins",
                    code="origin_not_allowed",
                )

    def _is_own(self, origin: str, headers: Headers) -> bool:
        """Say whether a page is of this machine, or of the name and port that the request was sent to."""
        _, marks, authority = origin.lower().partition("://")
        name = _host_of(authority)
        here = self.checks_all and (_is_localhost(name) or _is_loopback(name))
        return bool(marks) and (here or authority == (headers.get("host") or "").lower())


def _is_json(headers: Headers) -> bool:
    """Say whether the body is declared as JSON, which a page cannot send without the server's permission."""
    return (headers.get("content-type") or "").partition(";")[0].strip().lower() == _JSON


def _host_of(authority: str) -> str:
    """Return the host in lower case, without port, brackets and final dot; "" if it is malformed."""
    match = _AUTHORITY.fullmatch(authority.strip())
    return match["host"].lower().strip("[]").removesuffix(".") if match else ""


def _is_localhost(name: str) -> bool:
    return name == "localhost" or name.endswith(".localhost")


def _parsed(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _is_address(name: str) -> bool:
    """Say whether no name was looked up, so that none can have been rebound."""
    return _parsed(name) is not None


def _is_loopback(name: str) -> bool:
    address = _parsed(name)
    return address is not None and address.is_loopback


def plan_page_guard(
    *, has_keys: bool, is_local: bool, hosts: tuple[str, ...] = (), origins: tuple[str, ...] = ()
) -> PageGuard:
    """Return the guard of a server: a page does not know the keys, and the names of a public server are not known here."""
    return PageGuard(
        checks_all=not has_keys and is_local, checks_forms=not has_keys, hosts=hosts, origins=tuple(origins)
    )
