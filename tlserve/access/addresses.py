"""The number of requests that each client address has sent: a limit for callers without a key, or with a shared one.

Owns the addresses that are remembered, at most `MOST_ADDRESSES` of them: the one that has been silent the longest is forgotten
first. An IPv6 host can use all addresses of its /64, so the /64 counts. Pure: the clock is an argument.
"""

from __future__ import annotations

from collections import OrderedDict

from tlserve.access.rate_limits import MinuteWindow, limit_headers, too_many
from tlserve.http.sockets.peers import address_of

MOST_ADDRESSES = 10_000


class AddressLimits:
    """The limit of requests per minute of each address; 0: no limit."""

    def __init__(self, requests_per_minute: int = 0, most_addresses: int = MOST_ADDRESSES) -> None:
        self._limit = requests_per_minute
        self._most = most_addresses
        self._windows: OrderedDict[str, MinuteWindow] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of addresses that are remembered."""
        return len(self._windows)

    def count(self, peer: str, now_s: float) -> None:
        """Count one request from `peer` ("address:port"); beyond the limit it raises `HttpFault` 429 and counts nothing.

        A peer without an address, behind a Unix socket, is not limited.
        """
        address = address_of(peer) if self._limit else ""
        if not address:
            return
        window = self._window(address)
        wait_s = window.wait_s(1, self._limit, now_s)
        if wait_s > 0:
            message = f"your address has reached its limit of {self._limit} requests per minute; retry later"
            raise too_many(message, wait_s, limit_headers("Requests", self._limit, window, now_s))
        window.add(1, now_s)

    def _window(self, address: str) -> MinuteWindow:
        window = self._windows.pop(address, None) or MinuteWindow()
        self._windows[address] = window
        if len(self._windows) > self._most:
            self._windows.popitem(last=False)
        return window


def tenant_of(key_name: str | None, peer: str) -> str:
    """Return whose request it is: the name of its API key, or the address of a client without one."""
    return f"address {address_of(peer)}" if key_name is None else f"key {key_name}"
