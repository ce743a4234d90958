"""A server that is measured: its address, the path before its `/v1`, the name of a model, an API key, and whom it trusts for TLS.

Owns the reading of URLs, and the headers and paths of requests. Does not know what requests contain.
"""

from __future__ import annotations

import ssl

import attrs

from tlserve.errors import OperatorError
from tlserve.http.client.connection import HttpClient
from tlserve.http.client.origin import Origin, open_client, split_url, trust_for

API = "/v1"


@attrs.frozen(kw_only=True)
class TargetServer:
    """One server. `prefix` comes before `/v1` in every path; an empty `model` is not known yet; `tls` is for https."""

    name: str
    origin: Origin
    prefix: str = ""
    model: str = ""
    api_key: str = attrs.field(default="", repr=False)
    tls: ssl.SSLContext | None = attrs.field(default=None, repr=False)

    @property
    def url(self) -> str:
        """Return the address as a URL."""
        return f"{self.origin.url}{self.prefix}"

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """Return the headers of every request."""
        key = (("Authorization", f"Bearer {self.api_key}"),) if self.api_key else ()
        return (("Content-Type", "application/json"), ("Accept", "text/event-stream, application/json"), *key)

    def path(self, route: str) -> str:
        """Return the request target of a route below `/v1`, such as "/chat/completions"."""
        return f"{self.prefix}{API}{route}"

    async def connect(self) -> HttpClient:
        """Open a connection; raises `OSError` and `ResponseBroken`."""
        return await open_client(self.origin, self.tls)


def parse_target(url: str, *, name: str, model: str = "", api_key: str = "", ca_file: str = "") -> TargetServer:
    """Return the target at `url`, with or without `/v1` at its end; raises OperatorError for other URLs.

    `ca_file`: the certificates that are trusted for https, without it those that this machine trusts.
    """
    try:
        origin, parts = split_url(url)
    except ValueError:
        raise _unreadable(url) from None
    if parts.query or parts.fragment or parts.username:
        raise _unreadable(url)
    prefix, tls = parts.path.rstrip("/").removesuffix(API).rstrip("/"), trust_for(origin, ca_file)
    return TargetServer(name=name, origin=origin, prefix=prefix, model=model, api_key=api_key, tls=tls)


def _unreadable(url: str) -> OperatorError:
    return OperatorError(
        f"{url!r} cannot be measured: give an address such as http://127.0.0.1:8000, with or without a path"
    )
