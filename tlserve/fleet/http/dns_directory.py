"""The nodes behind DNS names: each address of a name is a node, such as the pods of a headless Service.

Owns the repeated lookups, and the changes that follow from them. An address that is no longer listed stays until its link also
fails: a name server that leaves out an address for a moment must not end its sessions. Does not know what a node serves.
Source: RFC 1035 (several A records of one name), the headless Services of Kubernetes.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

import attrs
import trio

from tlserve.fleet.http.link import HttpLink
from tlserve.fleet.link import NodeChange, NodeGone, NodeUp
from tlserve.http.client.origin import Origin, parse_origin

log = logging.getLogger("tlserve.fleet")

Resolve = Callable[[str, int], Awaitable[frozenset[str]]]
"""Return the addresses of a host; raises `OSError` if it has none or the lookup fails."""

_RESOLVE_S = 5.0


async def resolve_host(host: str, port: int) -> frozenset[str]:
    """Return the addresses of `host` from the machine's resolver; raises `OSError`."""
    found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return frozenset(str(address[0]) for *_, address in found)


class DnsDirectory:
    """The nodes at the addresses of `urls`, such as "http://nodes.fleet.svc:8000", looked up every `refresh_s`.

    `make_link` gets the address of a node as a URL, and the name that it was found by. Raises `ValueError` for an invalid URL.
    """

    def __init__(
        self,
        urls: Iterable[str],
        make_link: Callable[[str, str], HttpLink],
        *,
        refresh_s: float = 1.0,
        resolve: Resolve = resolve_host,
    ) -> None:
        self._origins = [parse_origin(url) for url in dict.fromkeys(urls)]
        self._make_link = make_link
        self._refresh_s = refresh_s
        self._resolve = resolve
        self._links: dict[str, HttpLink] = {}
        self._failing: set[str] = set()

    async def changes(self) -> AsyncIterator[NodeChange]:
        """Yield the nodes as they join and leave."""
        while True:
            listed = await self._listed()
            for url, host in listed.items():
                if url not in self._links:
                    self._links[url] = self._make_link(url, host)
                    yield NodeUp(url, self._links[url])
            for url in [url for url, link in self._links.items() if url not in listed and link.is_lost]:
                await self._links.pop(url).aclose()
                yield NodeGone(url, "its address is no longer listed, and it does not answer")
            await trio.sleep(self._refresh_s)

    async def aclose(self) -> None:
        """Close the links."""
        for link in self._links.values():
            await link.aclose()

    async def _listed(self) -> dict[str, str]:
        """Return the URL of every address, with the name that it belongs to."""
        return {url: origin.host for origin in self._origins for url in await self._addresses(origin)}

    async def _addresses(self, origin: Origin) -> list[str]:
        """Return the URLs of one name; none if it has no addresses or the lookup fails."""
        addresses: frozenset[str] | None = None
        with trio.move_on_after(_RESOLVE_S):
            try:
                addresses = await self._resolve(origin.host, origin.port)
            except OSError as error:
                self._warn(origin.host, str(error))
                return []
        if addresses is None:
            self._warn(origin.host, "the name server does not answer")
            return []
        self._failing.discard(origin.host)
        return [attrs.evolve(origin, host=address).url for address in sorted(addresses)]

    def _warn(self, host: str, reason: str) -> None:
        """Log once that a name has no addresses."""
        if host not in self._failing:
            self._failing.add(host)
            log.warning("the name %s has no nodes: %s", host, reason)
