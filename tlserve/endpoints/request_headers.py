"""The request headers that steer an answer, each read and checked here.

Owns their names and values. Does not know who asks for which header: a generating request reads all of those that apply to it at
once, before its body. The request's id, its key and its trace are read in `tlserve.endpoints.api`.
"""

from __future__ import annotations

import math
import re

import attrs

from tlserve.access.door import Entry
from tlserve.errors import ClientError, KvHandleNotFound
from tlserve.http.messages import Headers, HttpFault

DEADLINE = "X-TL-Deadline-Ms"
KV_HANDLE = "X-TL-KV-Handle"
PRIORITY = "X-TL-Priority"
PROGRESS = "X-TL-Progress"
RETURN_SEED = "X-TL-Return-Seed"
SPECIAL_TOKENS = "X-TL-Special-Tokens"
STRICT = "X-TL-Strict"

_PREFIX = "x-tl-"
PRIORITIES = range(-100, 101)
_INTEGER = re.compile(r"-?[0-9]{1,3}")
_MILLISECONDS = re.compile(r"[1-9][0-9]{0,11}")


@attrs.frozen(kw_only=True)
class GenerationHeaders:
    """The headers of a generating request; `deadline_s` counts from the request's arrival and is infinite without one."""

    priority: int = 0
    returns_seed: bool = False
    progress: bool = False
    deadline_s: float = math.inf

    def check(self, stream: bool) -> None:
        """Refuse progress for an answer that is not streamed."""
        if self.progress and not stream:
            raise ClientError(f"{PROGRESS} needs stream true; leave it out", param=PROGRESS)


NO_HEADERS = GenerationHeaders()


def read_generation_headers(headers: Headers, entry: Entry) -> GenerationHeaders:
    """Return the headers of a generating request; raises ClientError for a value that cannot be honoured."""
    if not any(name.lower().startswith(_PREFIX) for name, _ in headers.pairs):  # nearly all requests
        return NO_HEADERS
    refuse_kv_handle(headers)
    return GenerationHeaders(
        priority=read_priority(headers, entry),
        returns_seed=read_switch(headers, RETURN_SEED),
        progress=read_switch(headers, PROGRESS),
        deadline_s=read_deadline_s(headers),
    )


def read_priority(headers: Headers, entry: Entry) -> int:
    """Return `X-TL-Priority`, 0 without one; raises ClientError outside -100..100, and HttpFault if the key may not rise."""
    text = headers.get(PRIORITY)
    if text is None:
        return 0
    if not _INTEGER.fullmatch(text) or int(text) not in PRIORITIES:
        raise ClientError(f"{PRIORITY} is {text[:20]!a}; send an integer from -100 to 100", param=PRIORITY)
    if int(text) > 0 and not entry.may_set_priority:
        raise HttpFault(403, f"the API key {entry.key_name!r} may not send {PRIORITY} above 0; leave it out")
    return int(text)


def read_switch(headers: Headers, name: str) -> bool:
    """Say whether the header `name` is "1"; raises ClientError for a value that is neither 0 nor 1."""
    value = headers.get(name) or "0"
    if value not in ("0", "1"):
        raise ClientError(f"{name} is {value[:20]!a}; send 1, or leave it out", param=name)
    return value == "1"


def read_deadline_s(headers: Headers) -> float:
    """Return `X-TL-Deadline-Ms` in seconds, infinity without one; raises ClientError for other values."""
    text = headers.get(DEADLINE)
    if text is None:
        return math.inf
    if not _MILLISECONDS.fullmatch(text):
        raise ClientError(
            f"{DEADLINE} is {text[:20]!a}; send a whole number of milliseconds, at least 1", param=DEADLINE
        )
    return int(text) / 1000


def refuse_kv_handle(headers: Headers) -> None:
    """Refuse `X-TL-KV-Handle`: this server keeps no keys and values for later requests."""
    handle = headers.get(KV_HANDLE)
    if handle is not None:
        raise KvHandleNotFound(f"{KV_HANDLE} names {handle[:64]!a}, which this node does not hold; send the prompt")
