"""The key of a request, and the answers to a missing key, a wrong key, and a key without access.

Owns the reading of `Authorization: Bearer` and of `X-Api-Key`, which some clients send instead, and the challenge. A request can
have both if they are the same key. Anything else that looks like a key (another scheme, a second field, the query) is ignored.
Sources: RFC 9110 sections 11.6.1, 15.5.2, 15.5.4; RFC 6750 sections 2.1, 3; for `X-Api-Key` the public Messages API.
"""

from __future__ import annotations

from tlserve.access.keys import ApiKey, KeyRing
from tlserve.http.messages import Headers, HttpFault

_CHALLENGE = 'Bearer realm="tlserve"'


def authenticate(ring: KeyRing, headers: Headers, wall_s: float) -> ApiKey:
    """Return the key of a request at `wall_s` (seconds since 1970); raises `HttpFault` 401 or 403."""
    presented = _presented(headers)
    if presented is None:
        raise _unauthorized("this server requires an API key; send `Authorization: Bearer KEY`", _CHALLENGE)
    key = ring.find(presented)
    if key is None:
        raise _unauthorized("the API key is not valid", f'{_CHALLENGE}, error="invalid_token"')
    if key.disabled:
        raise HttpFault(403, f"the API key {key.name!r} is disabled")
    if key.expires_s is not None and wall_s >= key.expires_s:
        raise HttpFault(403, f"the API key {key.name!r} has expired")
    return key


def _presented(headers: Headers) -> str | None:
    """Return the key of a request; None for no key, and for fields that a proxy in front of this server could read otherwise."""
    bearers, plain = headers.get_all("authorization"), headers.get_all("x-api-key")
    if len(bearers) > 1 or len(plain) > 1:
        return None
    keys = {*map(_bearer_key, bearers), *(key.strip(" ") or None for key in plain)}
    return keys.pop() if len(keys) == 1 else None


def _bearer_key(field: str) -> str | None:
    scheme, _, key = field.strip().partition(" ")
    return key.strip(" ") if scheme.lower() == "bearer" and key.strip(" ") else None


def _unauthorized(message: str, challenge: str) -> HttpFault:
    return HttpFault(401, message, None, (("WWW-Authenticate", challenge),))
