"""What a generating request asks for in its headers, checked before its body is read.

Owns the headers that steer one answer. Those of every request (the request's id, strictness) are read where they are used.
"""

from __future__ import annotations

import math

import attrs

from tlserve.endpoints.answers.deadline import read_deadline_s
from tlserve.endpoints.exchange import is_asked, read_priority, refuse_kv_handle
from tlserve.errors import ClientError
from tlserve.http.messages import Headers

PROGRESS = "X-TL-Progress"
RETURN_SEED = "X-TL-Return-Seed"


@attrs.frozen(kw_only=True)
class AskedHeaders:
    """The headers' values; `deadline_s` counts from the arrival and is infinite without one."""

    priority: int = 0
    returns_seed: bool = False
    progress: bool = False
    deadline_s: float = math.inf

    def check(self, stream: bool) -> None:
        """Refuse progress of an answer that is not streamed."""
        if self.progress and not stream:
            raise ClientError(f"{PROGRESS} goes only with stream true; leave it out", param=PROGRESS)


NO_HEADERS = AskedHeaders()


def read_asked_headers(headers: Headers) -> AskedHeaders:
    """Return what the headers ask for; raises ClientError for what cannot be honoured."""
    refuse_kv_handle(headers)
    return AskedHeaders(
        priority=read_priority(headers),
        returns_seed=is_asked(headers, RETURN_SEED),
        progress=is_asked(headers, PROGRESS),
        deadline_s=read_deadline_s(headers),
    )
