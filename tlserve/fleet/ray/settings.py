"""The address of a cluster, and the token that its processes share.

Owns the settings of the Ray link and their checks. Runs nothing, and does not import Ray.

Ray runs any code that reaches its ports. On 127.0.0.1 all its sockets are on that address. On another address it opens some on
every interface of the machine, whatever its options say: then the network must be private. The token is always required; it
does not encrypt.
"""

from __future__ import annotations

import ipaddress
import math
import stat
from pathlib import Path

import attrs

from tlserve.config.checks import check_key_strength
from tlserve.config.cluster_environment import cluster_variables
from tlserve.errors import SettingsError

LOOPBACK = "127.0.0.1"
NAMESPACE = "tlserve"

RECONNECT_MARGIN_S = 300
"""How long a process without its control process lives beyond the longest answer, in seconds."""


@attrs.frozen(kw_only=True)
class RaySettings:
    """How this machine joins a cluster.

    `node_ip`: this machine's address in it. `token_file` holds the shared secret, which only its owner may read. `wall_s`: the
    longest time of an answer. `object_store_bytes`: the memory that Ray reserves for large messages.
    """

    token_file: Path
    node_ip: str = LOOPBACK
    wall_s: float = 600.0
    object_store_bytes: int = 80_000_000

    @property
    def is_loopback(self) -> bool:
        """Return whether the cluster is on this machine only."""
        return self.node_ip == LOOPBACK

    def variables(self) -> dict[str, str]:
        """Return the environment of every process of the cluster."""
        return cluster_variables(
            token_file=self.token_file.absolute(),
            reconnect_s=math.ceil(self.wall_s) + RECONNECT_MARGIN_S,
            loopback=self.is_loopback,
        )

    def check(self) -> None:
        """Refuse an address that Ray cannot limit itself to, and a token that is missing, weak, or readable by others.

        Raises `SettingsError` with all errors.
        """
        refusals = (*_address_refusals(self.node_ip), *_token_refusals(self.token_file))
        if refusals:
            raise SettingsError(refusals)


def _address_refusals(node_ip: str) -> tuple[str, ...]:
    try:
        address = ipaddress.ip_address(node_ip)
    except ValueError:
        return (
            f"the node's address {node_ip!r} is not an IP address: give the address by which other machines reach this one",
        )
    if address.is_unspecified:
        return (
            f"the node's address {node_ip} is not one machine's: give the address by which other machines reach this one",
        )
    if address.is_loopback and node_ip != LOOPBACK:
        return (f"Ray supports no loopback address but {LOOPBACK}: give that instead of {node_ip}",)
    return ()


def _token_refusals(path: Path) -> tuple[str, ...]:
    how = "make one by `python3 -c 'import secrets; print(secrets.token_hex(32))'`"
    try:
        token, mode = path.read_text(encoding="utf-8").strip(), path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        return (
            f"the token file {path} cannot be read ({type(error).__name__}): every machine needs the same token; {how}",
        )
    try:
        check_key_strength(token)
    except SettingsError as error:
        return tuple(f"the token in {path} {line}" for line in error.refusals)
    if stat.S_IMODE(mode) & 0o077:
        return (f"users other than its owner can read the token file {path}: chmod 600 {path}",)
    return ()
