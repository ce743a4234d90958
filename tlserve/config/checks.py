"""Checks of the form of a setting's text, where bounds are not enough.

Each raises `SettingsError` with the words that follow the name of the setting, which it does not know.
"""

from __future__ import annotations

import re

from tlserve.config.addresses import UNIX, parse_listen
from tlserve.errors import SettingsError

_WEAKEST_KEY_CHARACTERS = 16
_WEAKEST_KEY_ALPHABET = 6


def check_listen(text: str) -> None:
    """Refuse a text that is not an address to listen on."""
    parse_listen(text)


def check_listen_or_empty(text: str) -> None:
    """Refuse a text that is neither empty nor an address to listen on."""
    if text:
        parse_listen(text)


def check_unix_path_or_empty(text: str) -> None:
    """Refuse a text that is neither empty nor the whole path of a Unix socket."""
    if text:
        parse_listen(f"{UNIX}{text}")


def check_key_strength(key: str) -> None:
    """Refuse an API key that is empty, cannot be sent in a header, or is easily guessed; raises `SettingsError`."""
    if not key:
        raise SettingsError(("is empty: give a key, or leave the setting out",))
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise SettingsError(("has characters that an Authorization header cannot carry: use visible ASCII",))
    if len(key) < _WEAKEST_KEY_CHARACTERS or len(set(key)) < _WEAKEST_KEY_ALPHABET:
        raise SettingsError(
            (
                f"is too weak: it needs {_WEAKEST_KEY_CHARACTERS} characters, {_WEAKEST_KEY_ALPHABET} of them different; "
                "`python3 -c 'import secrets; print(secrets.token_urlsafe(32))'` makes a good one",
            )
        )


def check_mode(text: str) -> None:
    """Refuse a text that is not a mode of a socket."""
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and set(text) <= set("01234567")):
        raise SettingsError((f"must be an octal mode such as '0660', not {text!r}",))
    if int(text, 8) & ~0o777:
        raise SettingsError(("has bits beyond 0777, which mean nothing for a socket",))


def check_routes(routes: tuple[str, ...]) -> None:
    """Refuse texts that are not routes."""
    for route in routes:
        method, space, path = route.partition(" ")
        if not (method.isascii() and method.isupper() and space and path.startswith("/")):
            raise SettingsError((f"has {route!r}; write a method and a path, such as 'GET /healthz'",))


def check_origins(origins: tuple[str, ...]) -> None:
    """Refuse texts that are not origins of pages."""
    for origin in origins:
        scheme, marks, host = origin.partition("://")
        if origin != "*" and not (scheme.isalnum() and marks and host and "/" not in host and origin == origin.lower()):
            raise SettingsError((f"has {origin!r}; write '*', or an origin such as 'https://app.example.com'",))


def check_hosts(hosts: tuple[str, ...]) -> None:
    """Refuse texts that are not names of hosts."""
    for host in hosts:
        if host != "*" and not re.fullmatch(r"[a-z0-9_-]++(?:\.[a-z0-9_-]++)*+", host):
            raise SettingsError(
                (f"has {host!r}; write '*', or a name in lower case without a port, such as 'models.test'",)
            )


def check_node_urls(urls: tuple[str, ...]) -> None:
    """Refuse texts that are not URLs of nodes."""
    for url in urls:
        scheme, slashes, host = url.partition("://")
        if scheme not in ("http", "https") or not slashes or not host or "/" in host.rstrip("/"):
            raise SettingsError(
                (f"must be URLs with a scheme, a host and a port, such as 'http://10.0.0.7:8000', not {url!r}",)
            )


def check_endpoint(url: str) -> None:
    """Refuse a text that is not the address of a collector."""
    if url and not re.fullmatch(r"https?://[^/\s]+(/\S*)?", url):
        raise SettingsError((f"must be an http:// or https:// address, not {url!r}",))
