"""The check of the addresses that a server listens on: beyond this machine only with keys, or on purpose.

Owns the rule. Pure: the addresses are those that were bound, not names. A Unix socket is on this machine.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from tlserve.config.addresses import UNIX, parse_address
from tlserve.errors import SettingsError


def check_exposure(bound: Iterable[str], *, has_keys: bool, allow_public: bool) -> None:
    """Refuse an API that other machines can reach without a key; raises `SettingsError` with what to do."""
    if has_keys or allow_public:
        return
    exposed = [address for address in bound if not is_local(address)]
    if exposed:
        raise SettingsError(
            (
                f"{exposed[0]} can be reached from other machines, and no API key is required: "
                "set access.keys_file or TL_ACCESS__API_KEY, or listen on 127.0.0.1, "
                "or set access.allow_public = true if anyone can send requests",
            )
        )


def is_local(address: str) -> bool:
    """Say whether only this machine can reach a bound address ("host:port" with a literal host, or a Unix socket)."""
    if address.startswith(UNIX):
        return True
    host = parse_address(address).host.partition("%")[0]
    return bool(host) and ipaddress.ip_address(host).is_loopback
