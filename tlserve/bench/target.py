"""A server that is measured: its address, the path before its `/v1`, the name of a model, an API key.

Owns the reading of URLs, and the headers and paths of requests. Does not know what requests contain.
"""

from __future__ import annotations

from urllib.parse import urlsplit

import attrs

from tlserve.config.addresses import Address
from tlserve.errors import OperatorError

API = "/v1"


@attrs.frozen(kw_only=True)
class TargetServer:
    """One server. `prefix` comes before `/v1` in every path; an empty `model` is not known yet."""

    name: str
    address: Address
    prefix: str = ""
    model: str = ""
    api_key: str = attrs.field(default="", repr=False)

    @property
    def url(self) -> str:
        """Return the address as a URL."""
        return f"http://{self.address}{self.prefix}"

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """Return the headers of every request."""
        key = (("Authorization", f"Bearer {self.api_key}"),) if self.api_key else ()
        return (("Content-Type", "application/json"), ("Accept", "text/event-stream, application/json"), *key)

    def path(self, route: str) -> str:
        """Return the request target of a route below `/v1`, such as "/chat/completions"."""
        return f"{self.prefix}{API}{route}"


def parse_target(url: str, *, name: str, model: str = "", api_key: str = "") -> TargetServer:
    """Return the target at `url`, with or without `/v1` at its end; raises OperatorError for other URLs."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 80
    except ValueError:
        raise _unreadable(url) from None
    if parts.scheme != "http" or not host or parts.query or parts.fragment or parts.username:
        raise _unreadable(url)
    prefix = parts.path.rstrip("/").removesuffix(API).rstrip("/")
    return TargetServer(name=name, address=Address(host, port), prefix=prefix, model=model, api_key=api_key)


def _unreadable(url: str) -> OperatorError:
    return OperatorError(
        f"{url!r} cannot be measured: give an address such as http://127.0.0.1:8000, with or without a path"
    )
