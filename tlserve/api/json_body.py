"""Bytes -> the members of one JSON object, or a 400 that says what is wrong with them.

Owns the checks that the JSON decoder does not make: the encoding, the depth, duplicate names, and that the body is an object.
Members stay undecoded (`msgspec.Raw`): `tlserve.api.fields` decodes each once, by the type of its field. Does not know which
fields exist.

Source: RFC 8259; RFC 7493 (I-JSON) section 2.3 for duplicate names.
"""

from __future__ import annotations

import collections
import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from tlserve.errors import ClientError

MAX_DEPTH = 64
WINDOW_BYTES = 1 << 17
"""A scan of this size takes a few milliseconds: the longest that a stream should wait for the interpreter."""

Members = Mapping[str, msgspec.Raw]

# A string literal, closed or not. Every quantifier is possessive and nothing after them can fail, so that the scan is
# linear whatever the input; an unclosed string swallows the rest.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+', re.DOTALL)
# Up to the end, or to the quote of the first string that is not closed within it. An escape that the end cuts is not closed.
_CLOSED = re.compile(rb'(?:[^"]++|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+', re.DOTALL)
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def parse_object(body: bytes, *, max_depth: int = MAX_DEPTH) -> Members:
    """Return the members of the object in `body`, undecoded.

    Takes time linear in the body, whatever its bytes. Raises ClientError for anything but one JSON object in UTF-8, at
    most `max_depth` deep, without duplicate names.
    """
    _refuse_encoding(body)
    outline = outline_of(body)
    if is_deeper(outline, max_depth):
        raise ClientError(
            f"the body is nested more than {max_depth} levels deep, or its brackets do not match; send a flatter object"
        )
    members = _decode(body)
    if outline.count(b":") != len(members):  # one colon a name: there are nested names, or one is there twice
        _refuse_duplicates(body)
    return members


def outline_of(body: bytes, window_bytes: int = WINDOW_BYTES) -> bytes:
    """Return `body` without its string literals; an unclosed one swallows the rest.

    A regular expression holds the interpreter for as long as it runs: a large body is scanned in windows that end outside of
    strings, so that other threads get their turn. A string that fills a window doubles it, so that the time stays linear.
    """
    if len(body) <= window_bytes:
        return _STRING.sub(b"", body)
    pieces: list[bytes] = []
    start, size_bytes = 0, window_bytes
    while start < len(body):
        end = min(start + size_bytes, len(body))
        closed = _CLOSED.match(body, start, end)
        whole_end = end if closed is None or end == len(body) else closed.end()
        if whole_end == start:
            size_bytes *= 2
            continue
        pieces.append(_STRING.sub(b"", body[start:whole_end]))
        start, size_bytes = whole_end, window_bytes
    return b"".join(pieces)


def is_deeper(outline: bytes, levels: int) -> bool:
    """Say whether the arrays and objects of `outline`, a document without its strings, nest deeper than `levels`.

    Takes the brackets and removes the innermost pairs, one level at a time, in C. What is left after `levels` rounds is
    too deep, or does not match; the few brackets that a malformed but shallow body may leave are the decoder's to refuse.
    """
    brackets = outline.translate(_BRACKETS, _NOT_BRACKETS)
    for _ in range(levels):
        inner = brackets.replace(b"[]", b"")
        if len(inner) == len(brackets):
            break
        brackets = inner
    return b"[]" in brackets or len(brackets) > levels


def _decode(body: bytes) -> Members:
    try:
        return _MEMBERS.decode(body)
    except msgspec.ValidationError as fault:
        raise ClientError(f"the body must be a JSON object ({fault})") from None
    except msgspec.DecodeError as fault:
        raise ClientError(f"the body is not valid JSON ({fault})") from None


def _refuse_encoding(body: bytes) -> None:
    if not body.strip(b" \t\r\n"):
        raise ClientError("the body is empty; send a JSON object")
    if body.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in body[:4]:
        raise ClientError("the body is not UTF-8 (it looks like UTF-16 or UTF-32); send UTF-8")
    if body.startswith(b"\xef\xbb\xbf"):
        raise ClientError("the body begins with a byte order mark; send plain UTF-8")
    try:
        body.decode()
    except UnicodeDecodeError as fault:
        raise ClientError(f"the body is not UTF-8 (byte {fault.start}); send UTF-8") from None


class _DuplicateNameError(Exception):
    pass


def _check_names(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) != len(pairs):
        names = collections.Counter(name for name, _ in pairs)
        raise _DuplicateNameError(names.most_common(1)[0][0])


# Only the names matter here: no object is built and numbers become floats, which have no digit limit.
_NAMES = json.JSONDecoder(object_pairs_hook=_check_names, parse_int=float)


def _refuse_duplicates(body: bytes) -> None:
    try:
        _NAMES.decode(body.decode())
    except _DuplicateNameError as twice:
        name = str(twice)[:64].encode(errors="replace").decode()
        raise ClientError(f"the name {name!r} is there twice in one object; send it once", param=name) from None
    except (ValueError, RecursionError) as fault:
        raise ClientError(f"the body is not valid JSON ({fault})") from None
