"""Where a cluster is, and who may join it.

Owns the settings of the Ray link and what is refused in them. Refuses to know Ray itself, and to run anything.

Ray runs code for whoever reaches its ports. On 127.0.0.1 all its sockets are there alone. On another address it opens some on
every interface of the machine, whatever it is told: then the network must be private. The token is always asked for; it does
not encrypt.
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
"""Beyond the longest answer a process that has lost the control process lives so long, in seconds."""


@attrs.frozen(kw_only=True)
class RaySettings:
    """How this machine takes part in a cluster.

    `node_ip`: this machine's address in it. `token_file` holds the secret that all share, and nobody else may read it. `wall_s`:
    the longest that an answer may take. `object_store_bytes`: what Ray sets aside for large messages.
    """

    token_file: Path
    node_ip: str = LOOPBACK
    wall_s: float = 600.0
    object_store_bytes: int = 80_000_000

    @property
    def is_loopback(self) -> bool:
        """Say whether the cluster is on this machine alone."""
        return self.node_ip == LOOPBACK

    def variables(self) -> dict[str, str]:
        """Return the environment of every process of the cluster."""
        return cluster_variables(
            token_file=self.token_file.absolute(),
            reconnect_s=math.ceil(self.wall_s) + RECONNECT_MARGIN_S,
            loopback=self.is_loopback,
        )

    def check(self) -> None:
        """Refuse an address that Ray cannot keep to, and a token that is missing, weak, or readable by others.

        Raises `SettingsError` with all that is wrong.
        """
        refusals = (*_address_refusals(self.node_ip), *_token_refusals(self.token_file))
        if refusals:
            raise SettingsError(refusals)


def _address_refusals(node_ip: str) -> tuple[str, ...]:
    try:
        address = ipaddress.ip_address(node_ip)
    except ValueError:
        return (f"the node's address {node_ip!r} is not an IP address: give the one that the other machines reach",)
    if address.is_unspecified:
        return (f"the node's address {node_ip} names no machine: give the one that the other machines reach",)
    if address.is_loopback and node_ip != LOOPBACK:
        return (f"of the loopback addresses Ray keeps its sockets on {LOOPBACK} only: give that instead of {node_ip}",)
    return ()


def _token_refusals(path: Path) -> tuple[str, ...]:
    how = "`python3 -c 'import secrets; print(secrets.token_hex(32))'` makes a good one"
    try:
        token, mode = path.read_text(encoding="utf-8").strip(), path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        return (f"the token file {path} cannot be read ({type(error).__name__}): every machine needs the same; {how}",)
    try:
        check_key_strength(token)
    except SettingsError as error:
        return tuple(f"the token in {path} {line}" for line in error.refusals)
    if stat.S_IMODE(mode) & 0o077:
        return (f"others than its owner may use the token file {path}: chmod 600 {path}",)
    return ()
