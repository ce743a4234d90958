"""The settings of the server's side of the network: HTTP, who can send requests, TLS, and the pages of other origins."""

from __future__ import annotations

import attrs

from tlserve.config.checks import (
    check_hosts,
    check_key_strength,
    check_mode,
    check_origins,
    check_routes,
    check_unix_path_or_empty,
)
from tlserve.config.tables.declare import setting


@attrs.frozen(kw_only=True)
class HttpSettings:
    """The table `[http]`: the limits of the server. A request beyond a limit gets its status and a message that names it."""

    max_connections: int = setting(
        1024,
        "open connections; for a new one the oldest idle one is closed, and without an idle one it waits; fewer if the "
        "process can have fewer descriptors",
        unit="connections",
        low=1,
        high=1_000_000,
    )
    max_connections_per_address: int = setting(
        0,
        "open connections of one client address, except those of this machine; when all are in use, more get 429; 0: half "
        "of max_connections",
        unit="connections",
        low=0,
        high=1_000_000,
    )
    max_header_bytes: int = setting(
        32_768, "request line and headers together; more get 431", unit="bytes", low=256, high=1 << 24
    )
    max_header_count: int = setting(100, "headers of one request; more get 431", unit="headers", low=1, high=10_000)
    max_body_bytes: int = setting(
        8 << 20, "body of one request; a larger one gets 413", unit="bytes", low=1, high=1 << 34
    )
    max_bytes_in_flight: int = setting(
        256 << 20,
        "bodies, token ids and log-probabilities of all requests that have not ended; a request beyond it gets 503, and one that "
        "is larger alone 413",
        unit="bytes",
        low=1,
        high=1 << 40,
    )
    max_tokenize_characters: int = setting(
        1 << 20,
        "text, or rendered chat, whose tokens a request can see or count without a generation; a longer one gets 413",
        unit="characters",
        low=1,
        high=1 << 32,
    )
    max_json_depth: int = setting(
        64, "nesting of arrays and objects in a body; deeper ones get 400", unit="levels", low=1, high=1000
    )
    header_timeout_ms: int = setting(
        30_000,
        "from the first byte of a request to the end of its headers; then 408",
        unit="ms",
        low=1,
        high=86_400_000,
    )
    body_timeout_ms: int = setting(
        60_000, "from the headers to the end of the body; then 408", unit="ms", low=1, high=86_400_000
    )
    idle_timeout_ms: int = setting(
        120_000, "a kept-alive connection without a request for this long is closed", unit="ms", low=1, high=86_400_000
    )
    write_timeout_ms: int = setting(
        30_000, "longest time of one write to a client; then the connection is cut", unit="ms", low=1, high=86_400_000
    )
    handshake_timeout_ms: int = setting(
        10_000, "a TLS handshake that takes longer than this is cut", unit="ms", low=1, high=86_400_000
    )
    handover_socket: str = setting(
        "",
        "path of a Unix socket at which the next process with the same setting takes over the listening sockets; "
        "this one then drains and ends; empty: none",
        check=check_unix_path_or_empty,
    )
    unix_socket_mode: str = setting("0600", "permissions of a Unix socket, in octal", check=check_mode)
    ping_interval_ms: int = setting(
        15_000, "a stream without a token for this long gets the comment ': ping'", unit="ms", low=1, high=86_400_000
    )
    answer_timeout_ms: int = setting(
        0,
        "from the head of a request to the end of its answer; then 504, or an error event in a stream; 0: no limit",
        unit="ms",
        low=0,
        high=86_400_000,
    )
    drain_timeout_ms: int = setting(
        30_000, "time for open requests after SIGTERM; then each ends with an error", unit="ms", low=0, high=86_400_000
    )


@attrs.frozen(kw_only=True)
class AccessSettings:
    """The table `[access]`: who can send requests, and how many. Without `keys_file` and `api_key` everybody can."""

    keys_file: str = setting(
        "", "TOML file of API keys with their limits, read again when it changes; empty: no file", is_path=True
    )
    api_key: str = setting(
        "",
        "one key without limits; set it as TL_ACCESS__API_KEY, so that no file and no process list shows it",
        check=check_key_strength,
        is_secret=True,
    )
    public_routes: tuple[str, ...] = setting(
        ("GET /healthz", "GET /health"),
        "routes that need no key, as method and path; all other routes need one",
        check=check_routes,
    )
    share_cache: bool = setting(
        default=False,
        about="requests of different keys share cached prompts and grammars: faster, but times and `cached_tokens` show"
        " a client what others have sent",
    )
    allow_public: bool = setting(
        default=False, about="listen beyond this machine without keys: anyone who can reach it can send requests"
    )
    allow_hosts: tuple[str, ...] = setting(
        (),
        "names, in addition to localhost, by which clients can address a server on this machine that needs no key; '*': any name",
        check=check_hosts,
    )
    address_requests_per_minute: int = setting(
        0,
        "requests of one client address in any minute, with or without a key; more get 429; 0: no limit",
        unit="requests",
        low=0,
        high=1_000_000,
    )
    metrics_need_key: bool = setting(default=False, about="/metrics on the health port also needs one of the keys")


@attrs.frozen(kw_only=True)
class TlsSettings:
    """The table `[tls]`: with a certificate the API uses TLS 1.2 or 1.3. Both files are read again when they change."""

    certificate: str = setting("", "PEM file of the certificate and its chain; empty: no TLS", is_path=True)
    key: str = setting(
        "", "PEM file of the private key, not encrypted; empty: the key is in the certificate's file", is_path=True
    )


@attrs.frozen(kw_only=True)
class CorsSettings:
    """The table `[cors]`: the web pages that can read the answers."""

    allow_origins: tuple[str, ...] = setting(
        (),
        "origins such as 'https://app.example.com', or '*'; empty: pages of other origins can read no answer, and cannot use a "
        "server that needs no key",
        check=check_origins,
    )
