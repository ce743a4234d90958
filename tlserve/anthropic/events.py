"""The typed events of a streamed message.

Owns their names, their order and their members. Does not know when they are sent. Source: the public reference of the Messages
API, section on streaming.
"""

from __future__ import annotations

from typing import Any

from tlserve.anthropic.documents import (
    TEXT_OF,
    begun_fields,
    encode,
    error_fields,
    message_fields,
    stop_fields,
    usage_fields,
)
from tlserve.api.answer_blocks import AnswerBlocks, BlockBegun, BlockEnded, BlockKind, Change
from tlserve.api.answers import AnswerHead, Usage
from tlserve.api.errors import ErrorAnswer
from tlserve.chat.output.deltas import NOTHING, Delta
from tlserve.http import sse

PING = sse.event(encode({"type": "ping"}), "ping")
FORM = sse.StreamForm(sse.EVENTS.media_type, PING)


class MessageEvents:
    """The events of one message: `start`, then `piece` for each delta, then `end`; or `fault` at any time."""

    def __init__(self, head: AnswerHead, request_id: str) -> None:
        self._head = head
        self._request_id = request_id
        self._blocks = AnswerBlocks()
        self._last = NOTHING

    def start(self, usage: Usage) -> bytes:
        """Return the message without content."""
        message = message_fields(self._head.id, self._head.model, (), usage, stop_fields(None))
        return _event("message_start", message=message)

    def piece(self, delta: Delta) -> bytes:
        """Return the events of what a delta adds to the content."""
        self._last = delta
        return b"".join(map(_change, self._blocks.feed(delta)))

    def end(self, usage: Usage, *, filled: bool) -> bytes:
        """Return the end of the last block and of the message; `filled`: the limit of tokens was that of the context."""
        ending = _event("message_delta", delta=stop_fields(self._last, filled=filled), usage=usage_fields(usage))
        return b"".join(map(_change, self._blocks.finish())) + ending + _event("message_stop")

    def fault(self, answer: ErrorAnswer) -> bytes:
        """Return the event of an error."""
        return sse.event(encode(error_fields(answer, self._request_id)), "error")


def _event(name: str, **fields: Any) -> bytes:
    return sse.event(encode({"type": name, **fields}), name)


def _change(change: Change) -> bytes:
    if isinstance(change, BlockBegun):
        return _event("content_block_start", index=change.index, content_block=begun_fields(change))
    if isinstance(change, BlockEnded):
        return _event("content_block_stop", index=change.index)
    if change.kind is BlockKind.TOOL_USE:
        delta = {"type": "input_json_delta", "partial_json": change.text}
    else:
        name = TEXT_OF[change.kind]
        delta = {"type": f"{name}_delta", name: change.text}
    return _event("content_block_delta", index=change.index, delta=delta)
