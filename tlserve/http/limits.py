"""What a request may look like, decided on bytes and values alone: size and count of headers, framing, expectations.

Owns every refusal that needs no waiting. Does not know streams and clocks. A decision depends on the received bytes, and never
on how they were cut into reads. Sources: RFC 9112 sections 2.2, 3, 6.1, 6.3; RFC 9110 section 10.1.1; RFC 6585 section 5.
"""

from __future__ import annotations

import re

import h11

from tlserve.config.tables.network import HttpSettings
from tlserve.http.messages import Headers, HttpFault

_EMPTY_LINES = re.compile(rb"(?:\r?\n)*+")
_END_OF_HEAD = re.compile(rb"\n\r?\n")
_REQUEST_LINE = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+ [\x21-\x7e]+ HTTP/[0-9]\.[0-9]\r?\n")


def empty_lines_length(received: bytearray) -> int:
    """Return the bytes of the empty lines before a request, which are ignored (RFC 9112 section 2.2)."""
    match = _EMPTY_LINES.match(received)
    return match.end() if match else 0


def find_head(received: bytearray, searched_bytes: int, settings: HttpSettings) -> int | None:
    """Return the length of the request's head with its empty line, or None while it is incomplete.

    An earlier call has seen the first `searched_bytes`. Raises `HttpFault` 400 as soon as the first line cannot be
    a request line, 431 as soon as the head is too large or has too many fields.
    """
    _check_first_line(received, settings.max_header_bytes)
    match = _END_OF_HEAD.search(received, max(0, searched_bytes - 2))
    length = match.end() if match else len(received)
    if length > settings.max_header_bytes:
        raise _head_too_large(settings)
    if match is None:
        return None
    if received.count(b"\n", 0, length) - 2 > settings.max_header_count:
        raise HttpFault(431, f"the request has more than {settings.max_header_count} header fields (max_header_count)")
    return length


def _check_first_line(received: bytearray, limit_bytes: int) -> None:
    if received and not 0x21 <= received[0] <= 0x7E:
        raise HttpFault(400, "this is not HTTP/1.1: a request line was expected")
    end = received.find(b"\n", 0, limit_bytes)
    if end < 0:
        return
    if received.startswith(b"PRI * HTTP/2"):
        raise HttpFault(400, "this server does not speak HTTP/2; use HTTP/1.1")
    if not _REQUEST_LINE.fullmatch(received, 0, end + 1):
        raise HttpFault(400, "the first line is not an HTTP/1.1 request line")


def _head_too_large(settings: HttpSettings) -> HttpFault:
    return HttpFault(
        431, f"the request line and headers are larger than {settings.max_header_bytes} bytes (max_header_bytes)"
    )


def fault_of_protocol_error(error: h11.RemoteProtocolError) -> HttpFault:
    """Turn what h11 refused into a fault; 501 for a transfer coding other than chunked (RFC 9112 section 6.1).

    h11 quotes the bytes that it refused; how many it has seen depends on the reads, so the quote is left out.
    """
    reason, _, _ = str(error).partition(": b")
    return HttpFault(error.error_status_hint, f"malformed request: {reason}")


def check_head(head: h11.Request) -> None:
    """Refuse a head that h11 accepts: ambiguous framing 400, CONNECT 501, other versions 505, unknown expectations 417."""
    names = {name for name, _ in head.headers}
    if b"transfer-encoding" in names:
        _check_transfer_encoding(head, names)
    if head.http_version not in (b"1.1", b"1.0"):
        raise HttpFault(505, "this server speaks only HTTP/1.1 and HTTP/1.0")
    if head.method == b"CONNECT":
        raise HttpFault(501, "this server is not a proxy; CONNECT is not implemented")
    _check_expectation(head)


def _check_transfer_encoding(head: h11.Request, names: set[bytes]) -> None:
    if b"content-length" in names:
        raise HttpFault(400, "a request must not have both Content-Length and Transfer-Encoding")
    if head.http_version < b"1.1":
        raise HttpFault(400, "an HTTP/1.0 request must not have Transfer-Encoding")


def _check_expectation(head: h11.Request) -> None:
    if head.http_version < b"1.1":
        return  # RFC 9110 section 10.1.1: a 1.0 client's expectation is ignored
    expected = {
        member.strip().lower() for name, value in head.headers if name == b"expect" for member in value.split(b",")
    }
    if expected - {b"100-continue", b""}:
        raise HttpFault(417, "Expect has a value that this server does not know; send 100-continue, or leave it out")


def check_coding(headers: Headers) -> None:
    """Refuse a compressed body: 415 with the accepted coding (RFC 9110 section 15.5.16)."""
    if set(headers.tokens("content-encoding")) - {"identity"}:
        accept = (("Accept-Encoding", "identity"),)
        raise HttpFault(415, "the request body is compressed; send it without a Content-Encoding", None, accept)


def check_body_bytes(size_bytes: int, settings: HttpSettings) -> None:
    """Refuse a body of `size_bytes`, declared or counted so far, above the limit: 413."""
    if size_bytes > settings.max_body_bytes:
        raise HttpFault(413, f"the request body is larger than {settings.max_body_bytes} bytes (max_body_bytes)")


def check_framing_bytes(size_bytes: int, settings: HttpSettings) -> None:
    """Refuse a chunked body whose chunk lines and trailers are too large for its data: 400.

    Tiny chunks and long chunk extensions cost the server much more than they cost the client.
    """
    if size_bytes > settings.max_header_bytes + settings.max_body_bytes // 4:
        raise HttpFault(400, "the chunk lines and trailers of the request body are too large; send larger chunks")


def declared_length(headers: Headers) -> int | None:
    """Return the Content-Length, 0 for a request without a body, None for a chunked one (RFC 9112 section 6.3)."""
    if "transfer-encoding" in headers:
        return None
    return int(headers.get("content-length") or 0)
