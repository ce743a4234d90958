"""How many requests each client address has sent: a limit for callers that have no key, or share one.

Owns the addresses that are remembered, at most `MOST_ADDRESSES` of them: the one that was seen the longest time ago is forgotten
first. An IPv6 host has its whole /64 to take addresses from, so that is what counts. Pure: the clock is an argument.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict

from tlserve.access.rate_limits import MinuteWindow, limit_headers, too_many

MOST_ADDRESSES = 10_000
_HOST_NETWORK_BITS = 64


class AddressLimits:
    """The limit of requests per minute of each address; 0 is none."""

    def __init__(self, requests_per_minute: int = 0, most_addresses: int = MOST_ADDRESSES) -> None:
        self._limit = requests_per_minute
        self._most = most_addresses
        self._windows: OrderedDict[str, MinuteWindow] = OrderedDict()

    def __len__(self) -> int:
        """Return how many addresses are remembered."""
        return len(self._windows)

    def count(self, peer: str, now_s: float) -> None:
        """Count one request from `peer` ("address:port"); raises `HttpFault` 429 past the limit, which then counts nothing.

        A peer without an address, behind a Unix socket, is not limited.
        """
        address = address_of(peer) if self._limit else ""
        if not address:
            return
        window = self._window(address)
        wait_s = window.wait_s(1, self._limit, now_s)
        if wait_s > 0:
            message = f"your address has sent {self._limit} requests within a minute, which is its limit; retry later"
            raise too_many(message, wait_s, limit_headers("Requests", self._limit, window, now_s))
        window.add(1, now_s)

    def _window(self, address: str) -> MinuteWindow:
        window = self._windows.pop(address, None) or MinuteWindow()
        self._windows[address] = window
        if len(self._windows) > self._most:
            self._windows.popitem(last=False)
        return window


def address_of(peer: str) -> str:
    """Return what stands for the client behind `peer`: its IPv4 address, its IPv6 /64, or "" if there is none."""
    host = peer.rpartition(":")[0].removeprefix("[").removesuffix("]").partition("%")[0]
    if not host:
        return ""
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(ipaddress.ip_network((address, _HOST_NETWORK_BITS), strict=False))
