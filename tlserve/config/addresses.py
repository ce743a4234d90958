"""Listening addresses as the settings write them: "127.0.0.1:8000", ":8000", "[::1]:80", "unix:/run/tlserve.sock".

Owns the parser and the text of an address. Knows nothing of sockets: no name is looked up and nothing is bound.
Source: the authority form of RFC 3986 section 3.2, without the user part.
"""

from __future__ import annotations

import os
import re

import attrs

from tlserve.errors import SettingsError

_HOST = re.compile(r"[A-Za-z0-9._-]*")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?")


@attrs.frozen
class Address:
    """Where to listen: an empty `host` is every interface, `port` 0 is any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


UNIX = "unix:"
LONGEST_UNIX_PATH_BYTES = 100
"""Shorter than the limit of every system (104 to 108, with the zero byte), so that a path is refused here, with a reason."""


@attrs.frozen
class UnixAddress:
    """The file of a Unix socket."""

    path: str

    def __str__(self) -> str:
        return f"{UNIX}{self.path}"


def parse_listen(text: str) -> Address | UnixAddress:
    """Parse "host:port" or "unix:/path"; raises `SettingsError` with what to write instead."""
    return _parse_unix(text) if text.startswith(UNIX) else parse_address(text)


def _parse_unix(text: str) -> UnixAddress:
    path = text.removeprefix(UNIX)
    if not path.startswith("/") or "\0" in path or path.endswith("/"):
        raise _refused(text, "write the whole path of the socket, such as 'unix:/run/tlserve.sock'")
    try:
        path_bytes = len(os.fsencode(path))
    except UnicodeEncodeError:
        raise _refused(text, "the path of the socket has characters that no file name has") from None
    if path_bytes > LONGEST_UNIX_PATH_BYTES:
        raise _refused(text, f"the path of a Unix socket has at most {LONGEST_UNIX_PATH_BYTES} bytes")
    return UnixAddress(path)


def parse_address(text: str) -> Address:
    """Parse "host:port" into an `Address`; raises `SettingsError` with what to write instead."""
    if "://" in text:
        raise _refused(text, "leave the scheme out and write host:port")
    host, colon, port = text.rpartition(":")
    if not colon:
        raise _refused(text, f"write ':{text}'" if text.isdecimal() else f"add a port, such as '{text}:8000'")
    return Address(_parse_host(host, text), _parse_port(port, text))


def _parse_host(host: str, text: str) -> str:
    if host.startswith("[") and host.endswith("]"):
        if _IPV6.fullmatch(host[1:-1]) and ":" in host:
            return host[1:-1]
        raise _refused(text, "only an IPv6 address can be in brackets")
    if ":" in host:
        raise _refused(text, "write an IPv6 address in brackets, such as '[::1]:8000'")
    if not _HOST.fullmatch(host):
        raise _refused(text, "a host has only letters, digits, '.', '-' and '_'")
    return host


def _parse_port(port: str, text: str) -> int:
    if not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65_535):
        raise _refused(text, f"the port {port!r} is not a number from 0 to 65535")
    return int(port)


def _refused(text: str, remedy: str) -> SettingsError:
    return SettingsError((f"{text!r} is not an address: {remedy}",))
