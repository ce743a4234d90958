"""Chunks of a streamed answer as JSON, with little work for each.

Owns the shape of `chat.completion.chunk` and of the chunk form of `text_completion`. What all chunks of an answer repeat is
encoded once; a piece of text then costs one string encoding and one concatenation. Refuses to know SSE.

Source: the public API reference, `stream_options` for the usage chunk: `usage` is null on every other chunk when it was
asked for, absent when it was not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from tlserve.chat.output_reader import CallDelta, Delta
from tlserve.openai.documents import REASONING_NAMES, AnswerHead, Usage, encode, finish_reason, logprobs_fields


@attrs.frozen(kw_only=True)
class Chunks:
    """The chunks of one answer: what is the same in each, ready as bytes.

    `start` opens the list of choices, `end` closes it and the document; `before` and `after` stand around the text.
    """

    start: bytes
    before: bytes
    after: bytes
    end: bytes
    role: bytes | None = None
    reasoning_names: Sequence[str] = REASONING_NAMES

    def opening(self, choice: int = 0) -> bytes | None:
        """Return the chunk that names the role, if this kind of answer has one."""
        return None if self.role is None else self._start(choice) + self.role + self.end

    def piece(self, delta: Delta, choice: int = 0) -> bytes:
        """Return a chunk of text; the last one of a choice says why it ended."""
        if delta.reasoning or delta.calls:
            return self._start(choice) + b'"delta":' + encode(self._fields(delta)) + _tail(delta) + self.end
        return self._start(choice) + self.before + encode(delta.content) + self.after + _tail(delta) + self.end

    def _fields(self, delta: Delta) -> dict[str, Any]:
        """Return a delta that is not content alone; it has the members that gain something."""
        fields: dict[str, Any] = dict.fromkeys(self.reasoning_names, delta.reasoning) if delta.reasoning else {}
        if delta.content:
            fields["content"] = delta.content
        if delta.calls:
            fields["tool_calls"] = list(map(_call_fields, delta.calls))
        return fields

    def _start(self, choice: int) -> bytes:
        return self.start + b'{"index":%d,' % choice

    def usage(self, usage: Usage) -> bytes:
        """Return the chunk without choices that ends a stream whose usage was asked for."""
        return self.start + b'],"usage":' + encode(usage.fields()) + b"}"


_PLAIN_TAIL = b',"logprobs":null,"finish_reason":null}'


def _tail(delta: Delta) -> bytes:
    if delta.finish is None and not delta.logprobs:
        return _PLAIN_TAIL
    logprobs = encode(logprobs_fields(delta.logprobs or None))
    reason = encode(finish_reason(delta.finish, delta.called))
    return b',"logprobs":' + logprobs + b',"finish_reason":' + reason + b"}"


def _call_fields(piece: CallDelta) -> dict[str, Any]:
    """Return a piece of a call: its id, type and name only where it begins."""
    if not piece.id:
        return {"index": piece.index, "function": {"arguments": piece.arguments}}
    function = {"name": piece.name, "arguments": piece.arguments}
    return {"index": piece.index, "id": piece.id, "type": "function", "function": function}


def chat_chunks(head: AnswerHead, include_usage: bool, *, reasoning_names: Sequence[str] = REASONING_NAMES) -> Chunks:
    """Return the chunks of a chat answer: the role first, then pieces of reasoning, content and calls."""
    start, end = _frame(head, "chat.completion.chunk", include_usage)
    role = b'"delta":{"role":"assistant","content":""}' + _PLAIN_TAIL
    return Chunks(
        start=start,
        before=b'"delta":{"content":',
        after=b"}",
        end=end,
        role=role,
        reasoning_names=reasoning_names,
    )


def completion_chunks(head: AnswerHead, include_usage: bool) -> Chunks:
    """Return the chunks of a text completion: pieces only."""
    start, end = _frame(head, "text_completion", include_usage)
    return Chunks(start=start, before=b'"text":', after=b"", end=end)


def _frame(head: AnswerHead, kind: str, include_usage: bool) -> tuple[bytes, bytes]:
    start = encode(head.fields(kind))[:-1] + b',"choices":['
    return start, b'],"usage":null}' if include_usage else b"]}"
