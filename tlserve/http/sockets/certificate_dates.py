"""From when and until when a certificate is valid.

Owns the walk through the encoding to the two dates. Checks nothing else of a certificate: the TLS library has read it before.
Source: RFC 5280 section 4.1 (the fields, 4.1.2.5 the dates), ITU-T X.690 (lengths).
"""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

_SEQUENCE, _VERSION, _UTC_TIME = 0x30, 0xA0, 0x17
_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def fault_of_dates(path: str, now: datetime) -> str:
    """Return why the first certificate of the file is not valid at `now`, or "". Raises OSError and ValueError."""
    start, end = read_dates(Path(path).read_text(encoding="latin-1"))
    if now < start:
        return f"the certificate is not valid before {start:%Y-%m-%d %H:%M:%S} UTC; check the clock, or wait"
    if now > end:
        return f"the certificate expired at {end:%Y-%m-%d %H:%M:%S} UTC; renew it"
    return ""


def read_dates(pem: str) -> tuple[datetime, datetime]:
    """Return the first and the last moment of the first certificate in `pem`; raises ValueError."""
    body = pem.partition(_BEGIN)[2].partition(_END)[0]
    der = ssl.PEM_cert_to_DER_cert(_BEGIN + body + _END)
    fields = _members(_members(_members(der)[0][1])[0][1])
    # version (may be missing), serial number, signature, issuer, validity
    kind, validity = fields[4 if fields[0][0] == _VERSION else 3]
    dates = _members(validity)
    if kind != _SEQUENCE or len(dates) != 2:
        raise ValueError("the certificate has no dates")
    return _moment(*dates[0]), _moment(*dates[1])


def _members(der: bytes) -> list[tuple[int, bytes]]:
    """Return the type and the content of each value in `der`."""
    found: list[tuple[int, bytes]] = []
    at = 0
    while at + 2 <= len(der):
        kind, size, at = der[at], der[at + 1], at + 2
        if size & 0x80:  # so many bytes of length follow
            digits = size & 0x7F
            size, at = int.from_bytes(der[at : at + digits], "big"), at + digits
        if size > len(der) - at:
            raise ValueError("the certificate is cut")
        found.append((kind, der[at : at + size]))
        at += size
    return found


def _moment(kind: int, text: bytes) -> datetime:
    """Return a UTCTime (two digits of year, 1950 to 2049) or a GeneralizedTime."""
    digits = text.decode("ascii")
    if kind == _UTC_TIME:
        digits = ("19" if digits >= "5" else "20") + digits
    return datetime.strptime(digits, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
