"""One request to a target: sent, read event by event, and timed.

Owns the connection of one request (each has its own, as separate users do), the reading of chunks, and the kinds of failures.
Does not know how many requests there are and when they are sent.

If the server reports no usage, the pieces of text are counted: a server that sends several tokens in a piece then looks slower
than it is, and the figures say so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import attrs
import msgspec
import trio

from tlserve.bench.samples import Failure, Outcome, Sample
from tlserve.bench.target import TargetServer
from tlserve.http.client.connection import ResponseBroken, ResponseStream
from tlserve.http.client.origin import HandshakeFailed

CHAT = "/chat/completions"
CONNECT, BROKEN, TIMEOUT, EMPTY, IN_STREAM = "connect", "broken", "timeout", "empty answer", "error event"
_DATA = b"data:"
_DONE = b"[DONE]"
_MESSAGE_CHARS = 300


@attrs.define
class _AnswerReading:
    """The part of one answer that has been read."""

    first_s: float | None = None
    last_s: float = 0.0
    pieces: int = 0
    usage: dict[str, Any] | None = None
    error: str | None = None

    def feed(self, line: bytes, now_s: float) -> None:
        """Read one line of the stream; raises `msgspec.DecodeError` for data that is not JSON."""
        payload = line[len(_DATA) :].strip() if line.startswith(_DATA) else b""
        if not payload or payload == _DONE:
            return
        chunk = msgspec.json.decode(payload)
        if "error" in chunk:
            self.error = str(chunk["error"])[:_MESSAGE_CHARS]
        self.usage = chunk.get("usage") or self.usage
        if any(_has_text(choice) for choice in chunk.get("choices") or ()):
            self.pieces += 1
            self.last_s = now_s
            self.first_s = now_s if self.first_s is None else self.first_s


def _has_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    return bool(delta.get("content") or delta.get("reasoning_content"))


async def ask(
    target: TargetServer,
    body: bytes,
    *,
    limit_s: float,
    due_s: float | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Outcome:
    """Send `body` and return the sample or the failure; give up after `limit_s`."""
    due_s = clock() if due_s is None else due_s
    kind, message = TIMEOUT, f"no complete answer within {limit_s:g} s"
    try:
        with trio.move_on_after(limit_s):
            return await _ask(target, body, due_s, clock)
    except (OSError, HandshakeFailed) as error:
        kind, message = CONNECT, str(error)
    except (ResponseBroken, msgspec.DecodeError) as error:
        kind, message = BROKEN, str(error)
    return Failure(kind=kind, message=message, due_s=due_s, ended_s=clock())


async def _ask(target: TargetServer, body: bytes, due_s: float, clock: Callable[[], float]) -> Outcome:
    async with await target.connect() as client:
        answer = await client.open("POST", target.path(CHAT), target.headers, body)
        if answer.status != 200:
            message = (await answer.read())[:_MESSAGE_CHARS].decode(errors="replace")
            return Failure(kind=f"status {answer.status}", message=message, due_s=due_s, ended_s=clock())
        reading = await _read(answer, clock)
    return _outcome(reading, due_s, clock())


async def _read(answer: ResponseStream, clock: Callable[[], float]) -> _AnswerReading:
    reading = _AnswerReading()
    async for line in answer.lines():
        reading.feed(line, clock())
    return reading


def _outcome(reading: _AnswerReading, due_s: float, ended_s: float) -> Outcome:
    if reading.error is not None:
        return Failure(kind=IN_STREAM, message=reading.error, due_s=due_s, ended_s=ended_s)
    if reading.first_s is None:
        return Failure(kind=EMPTY, message="the answer had no text", due_s=due_s, ended_s=ended_s)
    usage = reading.usage or {}
    return Sample(
        due_s=due_s,
        first_token_s=reading.first_s,
        last_token_s=reading.last_s,
        ended_s=ended_s,
        prompt_tokens=usage.get("prompt_tokens", 0),
        output_tokens=usage.get("completion_tokens", reading.pieces),
        counted="completion_tokens" in usage,
    )
