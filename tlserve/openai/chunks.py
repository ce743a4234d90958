"""Chunks of a streamed answer as JSON, with little work for each.

Owns the shape of `chat.completion.chunk` and of the chunk form of `text_completion`. The parts that all chunks of an answer
share are encoded once; a piece of text then costs one string encoding and one concatenation. Does not know SSE.

Source: the public API reference, `stream_options` for the usage chunk: `usage` is null on every other chunk if it was requested,
and absent if it was not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import attrs

from tlserve.api.answers import NO_EXTRAS, AnswerHead, Extras, Usage
from tlserve.chat.logprob_entries import LogprobEntry
from tlserve.chat.output.deltas import CallDelta, Delta
from tlserve.chat.served_model import REASONING_NAMES
from tlserve.openai.documents import answer_fields, encode, finish_reason, head_fields, prompt_fields, usage_fields
from tlserve.openai.logprobs import chat_logprobs, completion_logprobs

_PLAIN_TAIL = b',"logprobs":null,"finish_reason":null'


@attrs.frozen(kw_only=True)
class Chunks:
    """The chunks of one answer: the parts that all of them share, as bytes.

    `start` opens the list of choices, `end` closes it and the document; `before` and `after` are around the text. `logprobs` is
    the form of log-probabilities. The prompt's ids are in the document, or in its choice if each choice has its own.
    """

    start: bytes
    before: bytes
    after: bytes
    end: bytes
    logprobs: Callable[[Sequence[LogprobEntry] | None], dict[str, Any] | None]
    role: bytes | None = None
    prompt_ids_in_choice: bool = False
    reasoning_names: Sequence[str] = REASONING_NAMES

    @cached_property
    def _plain_end(self) -> bytes:
        """Return what follows the text of a chunk that holds nothing else."""
        return self.after + _PLAIN_TAIL + b"}" + self.end

    def opening(self, choice: int = 0, extras: Extras = NO_EXTRAS, usage: Usage | None = None) -> bytes | None:
        """Return the chunk that names the role, if this kind of answer has one."""
        return None if self.role is None else self._start(choice) + self.role + b"}" + self._end(extras, usage)

    def piece(self, delta: Delta, choice: int = 0, extras: Extras = NO_EXTRAS, usage: Usage | None = None) -> bytes:
        """Return a chunk of text; the last one of a choice has the reason of its end. `usage` is the request's so far."""
        more = delta.finish or delta.reasoning or delta.calls or delta.logprobs
        if not more and extras is NO_EXTRAS and usage is None:  # nearly all chunks: one a token
            text = encode(delta.content)
            return b'%b{"index":%d,%b%b%b' % (self.start, choice, self.before, text, self._plain_end)
        tail = self._tail(delta) + self._choice_end(extras) + self._end(extras, usage)
        if delta.reasoning or delta.calls:
            return self._start(choice) + b'"delta":' + encode(self._fields(delta)) + tail
        return self._start(choice) + self.before + encode(delta.content) + self.after + tail

    def _fields(self, delta: Delta) -> dict[str, Any]:
        """Return a delta that is not only content; it has the members that gain something."""
        fields: dict[str, Any] = dict.fromkeys(self.reasoning_names, delta.reasoning) if delta.reasoning else {}
        if delta.content:
            fields["content"] = delta.content
        if delta.calls:
            fields["tool_calls"] = list(map(_call_fields, delta.calls))
        return fields

    def _tail(self, delta: Delta) -> bytes:
        if delta.finish is None and not delta.logprobs:
            return _PLAIN_TAIL
        logprobs = encode(self.logprobs(delta.logprobs or None))
        reason = encode(finish_reason(delta.finish, delta.called))
        return b',"logprobs":' + logprobs + b',"finish_reason":' + reason

    def _choice_end(self, extras: Extras) -> bytes:
        if extras is NO_EXTRAS:
            return b"}"
        prompt = prompt_fields(extras) if self.prompt_ids_in_choice else {}
        return _members({**prompt, **answer_fields(extras)}) + b"}"

    def _end(self, extras: Extras, usage: Usage | None) -> bytes:
        if extras is NO_EXTRAS and usage is None:
            return self.end
        prompt = {} if self.prompt_ids_in_choice else prompt_fields(extras)
        end = self.end[:-1] if usage is None else b'],"usage":' + encode(usage_fields(usage))
        return end + _members(prompt) + b"}"

    def _start(self, choice: int) -> bytes:
        return self.start + b'{"index":%d,' % choice

    def usage(self, usage: Usage) -> bytes:
        """Return the chunk without choices that ends a stream whose usage was asked for."""
        return self.start + b'],"usage":' + encode(usage_fields(usage)) + b"}"


def _members(fields: dict[str, Any]) -> bytes:
    """Return further members of an object that is not closed yet."""
    return b"," + encode(fields)[1:-1] if fields else b""


def _call_fields(piece: CallDelta) -> dict[str, Any]:
    """Return a piece of a call: its id, type and name only at its start."""
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
        logprobs=chat_logprobs,
        role=role,
        reasoning_names=reasoning_names,
    )


def completion_chunks(head: AnswerHead, include_usage: bool) -> Chunks:
    """Return the chunks of a text completion: pieces only."""
    start, end = _frame(head, "text_completion", include_usage)
    return Chunks(
        start=start,
        before=b'"text":',
        after=b"",
        end=end,
        logprobs=completion_logprobs,
        prompt_ids_in_choice=True,
    )


def _frame(head: AnswerHead, kind: str, include_usage: bool) -> tuple[bytes, bytes]:
    start = encode(head_fields(head, kind))[:-1] + b',"choices":['
    return start, b'],"usage":null}' if include_usage else b"]}"
