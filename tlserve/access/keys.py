"""API keys: the facts of each key, and the search for the key of a request.

Owns the form of the key file (a list of tables `[[keys]]`) and the comparison, which takes the same time for all keys. Only the
SHA-256 of a key is kept; log lines and errors have the key's name. Knows nothing of files and clocks: the parsed document and the
time are arguments.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from tlserve.config.checks import check_key_strength
from tlserve.errors import SettingsError

GLOBAL_NAME = "api_key"
"""The name of the key that is in the settings and not in a file."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")
_MOST = 1_000_000_000_000


@attrs.frozen(kw_only=True)
class Limits:
    """The limits of a key; 0: no limit. A minute is any 60 seconds."""

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    concurrent_streams: int = 0


@attrs.frozen(kw_only=True)
class ApiKey:
    """One key: `digest` is its SHA-256; `expires_s` is in seconds since 1970, None for a key that does not expire."""

    name: str
    digest: bytes = attrs.field(repr=False)
    expires_s: float | None = None
    disabled: bool = False
    may_set_priority: bool = False
    limits: Limits = Limits()


def digest_of(key: str) -> bytes:
    """Return the SHA-256 of a key."""
    return hashlib.sha256(key.encode()).digest()


class KeyRing:
    """The keys of a server."""

    def __init__(self, keys: Iterable[ApiKey] = ()) -> None:
        self.keys = tuple(keys)

    def find(self, presented: str) -> ApiKey | None:
        """Return the key of the text `presented`, or None. Every key is compared, each in constant time."""
        digest = digest_of(presented)
        found: ApiKey | None = None
        for key in self.keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


def global_key(key: str) -> ApiKey:
    """Return the key of the settings."""
    return ApiKey(name=GLOBAL_NAME, digest=digest_of(key), may_set_priority=True)


def join_keys(in_file: Sequence[ApiKey], own: ApiKey | None) -> KeyRing:
    """Return all keys; raises `SettingsError` if the key of the settings is also in the file, with limits.

    Such a key would have limits in one place and none in the other.
    """
    same = [key for key in in_file if own is not None and hmac.compare_digest(key.digest, own.digest)]
    bound = [key for key in same if key.limits != Limits() or key.expires_s is not None or key.disabled]
    if bound:
        raise SettingsError(
            (f"access.api_key is the key {bound[0].name!r} of the keys file, where it has limits: use another key",)
        )
    return KeyRing((*in_file, *((own,) if own is not None and not same else ())))


# --- the file ----------------------------------------------------------------------------------------------------------


def parse_keys(document: Mapping[str, object]) -> tuple[ApiKey, ...]:
    """Return the keys of a keys file; raises `SettingsError` with one line for each mistake."""
    refusals = [f"unknown table {name!r}: write [[keys]]" for name in document if name != "keys"]
    rows = document.get("keys", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise SettingsError((*refusals, "'keys' must be a list of tables: write [[keys]] above each"))
    keys = [_parse_key(row, index, refusals) for index, row in enumerate(rows, 1)]
    refusals += _repeated(keys)
    if not rows and not refusals:
        refusals.append("the file has no key: write [[keys]] with a name and a key")
    if refusals:
        raise SettingsError(tuple(refusals))
    return tuple(keys)


def _repeated(keys: Sequence[ApiKey]) -> list[str]:
    names = [name for name, count in Counter(key.name for key in keys).items() if count > 1]
    digests = Counter(key.digest for key in keys if key.digest)
    twice = sorted({key.name for key in keys if digests[key.digest] > 1})
    same = [f"{', '.join(map(repr, twice))} have the same key"] if len(twice) > 1 else []
    return [f"two keys have the name {name!r}" for name in names if name] + same


class _Refused(Exception):
    """A field that is not what it must be."""


def _parse_key(row: Mapping[str, object], index: int, refusals: list[str]) -> ApiKey:
    """Return the key of one table; add one line to `refusals` for each mistake."""
    name = row.get("name")
    who = name if isinstance(name, str) and _NAME.fullmatch(name) else f"number {index}"
    values: dict[str, object] = {}
    for field, parse in _FIELDS.items():
        try:
            values[field] = parse(row)
        except _Refused as reason:
            refusals.append(f"key {who}: {reason}")
    refusals += [f"key {who}: there is no setting {field!r}" for field in row if field not in _KNOWN]
    limits = Limits(**{field: values.get(field, 0) for field in _LIMITS})  # type: ignore[arg-type]
    rest = {field: value for field, value in values.items() if field not in _LIMITS}
    return ApiKey(**{"name": "", "digest": b"", **rest}, limits=limits)  # type: ignore[arg-type]


def _parse_name(row: Mapping[str, object]) -> str:
    name = row.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name == GLOBAL_NAME:
        raise _Refused("name must be 1 to 64 letters, digits, '.', '_', '@' or '-', and not 'api_key'")
    return name


def _parse_digest(row: Mapping[str, object]) -> bytes:
    key, digest = row.get("key"), row.get("sha256")
    if (key is None) == (digest is None):
        raise _Refused("give either key or sha256")
    if digest is None:
        return _digest_of_clear(key)
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise _Refused("sha256 must be 64 hexadecimal digits")
    return bytes.fromhex(digest)


def _digest_of_clear(key: object) -> bytes:
    if not isinstance(key, str):
        raise _Refused("key must be a text")
    try:
        check_key_strength(key)
    except SettingsError as error:
        raise _Refused(f"key {error.message}") from None
    return digest_of(key)


def _parse_expires(row: Mapping[str, object]) -> float | None:
    """Return a date and time with zone as seconds since 1970; a date without a time is its first moment in UTC."""
    when = row.get("expires")
    if when is None:
        return None
    if isinstance(when, datetime.datetime) and when.tzinfo is not None:
        return when.timestamp()
    if isinstance(when, datetime.date) and not isinstance(when, datetime.datetime):
        return datetime.datetime(when.year, when.month, when.day, tzinfo=datetime.UTC).timestamp()
    raise _Refused("expires must be a date, or a date and time with zone, such as 2030-01-31T12:00:00Z, without quotes")


def _flag(field: str) -> Callable[[Mapping[str, object]], bool]:
    def parse(row: Mapping[str, object]) -> bool:
        value = row.get(field, False)
        if not isinstance(value, bool):
            raise _Refused(f"{field} must be true or false")
        return value

    return parse


def _limit(field: str) -> Callable[[Mapping[str, object]], int]:
    def parse(row: Mapping[str, object]) -> int:
        limit = row.get(field)
        if limit is None:
            return 0
        if type(limit) is not int or not 1 <= limit <= _MOST:
            raise _Refused(f"{field} must be a whole number, at least 1; leave it out for no limit")
        return limit

    return parse


_LIMITS = tuple(field.name for field in attrs.fields(Limits))
_FIELDS: Mapping[str, Callable[[Mapping[str, object]], object]] = {
    "name": _parse_name,
    "digest": _parse_digest,
    "expires_s": _parse_expires,
    "disabled": _flag("disabled"),
    "may_set_priority": _flag("may_set_priority"),
    **{field: _limit(field) for field in _LIMITS},
}
_KNOWN = {"name", "key", "sha256", "expires", "disabled", "may_set_priority", *_LIMITS}
