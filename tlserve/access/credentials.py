"""The key of a request, and the answers to a missing key, a wrong key, and a key without access.

Owns the reading of `Authorization: Bearer`, and the challenge. Anything else that looks like a key (another scheme, `X-Api-Key`,
a second Authorization field, the query) is ignored. Sources: RFC 9110 sections 11.6.1, 15.5.2, 15.5.4; RFC 6750 sections 2.1, 3.
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
    fields = headers.get_all("authorization")
    if len(fields) != 1:  # a proxy in front of this server could read another one of two fields
        return None
    scheme, _, key = fields[0].strip().partition(" ")
    return key.strip(" ") if scheme.lower() == "bearer" and key.strip(" ") else None


def _unauthorized(message: str, challenge: str) -> HttpFault:
    return HttpFault(401, message, None, (("WWW-Authenticate", challenge),))
