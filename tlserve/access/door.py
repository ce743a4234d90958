"""The decision at the head of a request: let it in, and under which limits, or refuse it before its body is read.

Owns the use that each key has made, and the order of the checks: a public route passes; then the client's address, the key, its
open requests, its tokens, its requests. A refused request counts only for its address. Does not know routes by their paths: the
name of the route that matched is handed in, so no spelling of a path leads around the checks. Pure: the clocks are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import attrs

from tlserve.access.addresses import AddressLimits
from tlserve.access.credentials import authenticate
from tlserve.access.keys import KeyRing, Limits
from tlserve.access.rate_limits import Fields, MinuteWindow, limit_headers, too_many
from tlserve.errors import ClientError
from tlserve.http.messages import Headers

NO_LIMITS = Limits()
STREAM_WAIT_S = 1.0
"""The wait that is advised until one of the client's own requests ends; the true time is not known."""


@attrs.frozen(kw_only=True)
class Knock:
    """A request before the door. `route` is the name of the route that matched, such as "GET /healthz", or "" for none.

    `now_s` is of a clock that never goes back, `wall_s` is in seconds since 1970.
    """

    route: str
    generates: bool
    headers: Headers
    peer: str
    now_s: float
    wall_s: float


@attrs.define(eq=False)
class KeyUsage:
    """The use that one key has made."""

    requests: MinuteWindow = attrs.field(factory=MinuteWindow)
    tokens: MinuteWindow = attrs.field(factory=MinuteWindow)
    streams: int = 0


class Entry:
    """One request that is inside; `leave` must be called once, however it ends. Without a `usage` there are no limits.

    `cache_owner`: the key that alone uses its caches, or "" where they are shared. `may_set_priority`: whether the request may
    be served before those of others.
    """

    def __init__(
        self,
        key_name: str | None = None,
        limits: Limits = NO_LIMITS,
        usage: KeyUsage | None = None,
        *,
        generates: bool = False,
        cache_owner: str = "",
        may_set_priority: bool = True,
    ) -> None:
        self.key_name = key_name
        self.may_set_priority = may_set_priority
        self.cache_owner = cache_owner
        self._limits = limits
        self._usage = usage
        self._reserved = 0
        self._reserved_s = -math.inf
        self._holds_stream = generates and usage is not None
        if usage is not None:
            usage.streams += generates

    def headers(self, now_s: float) -> Fields:
        """Return the `X-RateLimit-*` of an answer that is sent now."""
        return () if self._usage is None else rate_headers(self._limits, self._usage, now_s)

    def reserve(self, tokens: int, now_s: float) -> None:
        """Count `tokens` before they are used; raises `HttpFault` 429 if they are too many now, `ClientError` if always."""
        limit = self._limits.tokens_per_minute
        if not limit or self._usage is None:
            return
        needs = f"this request needs {tokens} tokens including its answer, and your API key is limited to {limit} per minute"
        if tokens > limit:
            raise ClientError(f"{needs}; shorten the prompt or ask for fewer tokens", code="rate_limit_exceeded")
        wait_s = self._usage.tokens.wait_s(tokens, limit, now_s)
        if wait_s > 0:
            raise too_many(f"{needs}; retry later", wait_s)
        self._usage.tokens.add(tokens, now_s)
        self._reserved, self._reserved_s = tokens, now_s

    def leave(self, used_tokens: int, now_s: float) -> None:
        """Give back the permit, and count the tokens that were used instead of those that were reserved."""
        if self._usage is None:
            return
        self._usage.streams -= self._holds_stream
        self._holds_stream = False
        beyond = used_tokens - self._reserved
        if beyond > 0:
            self._usage.tokens.add(beyond, now_s)
        elif beyond < 0:
            self._usage.tokens.take_back(-beyond, self._reserved_s, now_s)
        self._reserved = used_tokens


class Door:
    """Lets requests in. `ring` None: no key is needed. `public` are routes, such as "GET /healthz", that never need one.

    `share_cache`: requests of different keys share the caches of prompts and grammars.
    """

    def __init__(
        self,
        ring: KeyRing | None = None,
        *,
        public: Iterable[str] = (),
        addresses: AddressLimits | None = None,
        share_cache: bool = False,
    ) -> None:
        self._ring = ring
        self._share_cache = share_cache
        self._public = frozenset(public)
        self._addresses = AddressLimits() if addresses is None else addresses
        self._usage: dict[str, KeyUsage] = {}

    @property
    def wants_keys(self) -> bool:
        """Say whether a request needs a key."""
        return self._ring is not None

    def replace_keys(self, ring: KeyRing) -> None:
        """Let the keys of `ring` in from now on; a key that keeps its name keeps the use it has made."""
        self._ring = ring
        names = {key.name for key in ring.keys}
        self._usage = {name: usage for name, usage in self._usage.items() if name in names}

    def authenticate(self, headers: Headers, wall_s: float) -> None:
        """Check the key of a request that has no limits; raises `HttpFault` 401 or 403."""
        if self._ring is not None:
            authenticate(self._ring, headers, wall_s)

    def enter(self, knock: Knock) -> Entry:
        """Let a request in; raises `HttpFault` 401, 403 or 429."""
        if knock.route in self._public:
            return Entry()
        self._addresses.count(knock.peer, knock.now_s)
        if self._ring is None:
            return Entry()
        key = authenticate(self._ring, knock.headers, knock.wall_s)
        usage = self._usage.setdefault(key.name, KeyUsage())
        _check(key.limits, usage, knock)
        usage.requests.add(1, knock.now_s)
        cache_owner = "" if self._share_cache else key.name
        return Entry(
            key.name,
            key.limits,
            usage,
            generates=knock.generates,
            cache_owner=cache_owner,
            may_set_priority=key.may_set_priority,
        )


def rate_headers(limits: Limits, usage: KeyUsage, now_s: float) -> Fields:
    """Return the headers of both limits of a key."""
    return (
        *limit_headers("Requests", limits.requests_per_minute, usage.requests, now_s),
        *limit_headers("Tokens", limits.tokens_per_minute, usage.tokens, now_s),
    )


def _check(limits: Limits, usage: KeyUsage, knock: Knock) -> None:
    """Raise a 429 for the first limit that is reached; the limits that a retry passes soonest come first."""
    headers = rate_headers(limits, usage, knock.now_s)
    if knock.generates and 0 < limits.concurrent_streams <= usage.streams:
        raise too_many(
            f"your API key has {usage.streams} open requests, which is its limit; wait until one ends",
            STREAM_WAIT_S,
            headers,
        )
    for what, limit, window in (
        ("tokens", limits.tokens_per_minute, usage.tokens),
        ("requests", limits.requests_per_minute, usage.requests),
    ):
        wait_s = window.wait_s(1, limit, knock.now_s) if limit else 0.0
        if wait_s > 0:
            raise too_many(
                f"your API key has reached its limit of {limit} {what} per minute; retry later", wait_s, headers
            )
