"""Whole messages, usage, counts, models and errors of the Messages API as JSON.

Owns the shape of every document that is sent in one piece. Does not know how an answer came about.

Source: the public reference of the Messages API. `input_tokens` are those that were computed: the tokens from the prefix cache
are in `cache_read_input_tokens`. Nothing is written to a cache on request, so that `cache_creation_input_tokens` is 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tlserve.api.answer_blocks import AnswerBlocks, BlockBegun, BlockGained, BlockKind
from tlserve.api.answers import Usage, arguments_object, moment
from tlserve.api.errors import ErrorAnswer
from tlserve.chat.output.deltas import Delta
from tlserve.generation import Finish

encode = msgspec.json.encode
TEXT_OF: Mapping[BlockKind, str] = {BlockKind.THINKING: "thinking", BlockKind.TEXT: "text"}
"""The member with the text of a block."""

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def message_fields(
    message_id: str, model: str, content: Sequence[Mapping[str, Any]], usage: Usage, ending: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a message; `ending` is what `stop_fields` returns."""
    return {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": content,
        **ending,
        "usage": usage_fields(usage),
    }


def usage_fields(usage: Usage) -> dict[str, Any]:
    """Return the `usage` object."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }


def stop_fields(last: Delta | None, *, filled: bool = False) -> dict[str, str | None]:
    """Return why an answer ended, by its last delta; None before its end. `filled`: its limit was that of the context."""
    if last is None or last.finish is None:
        return {"stop_reason": None, "stop_sequence": None}
    if last.finish is Finish.LENGTH:
        return {"stop_reason": "model_context_window_exceeded" if filled else "max_tokens", "stop_sequence": None}
    if last.stop_string:
        return {"stop_reason": "stop_sequence", "stop_sequence": last.stop_string}
    return {"stop_reason": "tool_use" if last.called else "end_turn", "stop_sequence": None}


def begun_fields(begun: BlockBegun) -> dict[str, Any]:
    """Return a block at its beginning."""
    if begun.kind is BlockKind.TOOL_USE:
        return {"type": "tool_use", "id": begun.id, "name": begun.name, "input": {}}
    signature = {"signature": ""} if begun.kind is BlockKind.THINKING else {}
    return {"type": begun.kind.value, TEXT_OF[begun.kind]: "", **signature}


def content_of(deltas: Iterable[Delta]) -> list[dict[str, Any]]:
    """Return the whole blocks of an answer. The input of a call that the limit of tokens has cut is empty."""
    blocks = AnswerBlocks()
    begun: list[BlockBegun] = []
    texts: list[list[str]] = []
    for change in (change for delta in deltas for change in blocks.feed(delta)):
        if isinstance(change, BlockBegun):
            begun.append(change)
            texts.append([])
        elif isinstance(change, BlockGained):
            texts[change.index].append(change.text)
    return [_whole(block, "".join(own)) for block, own in zip(begun, texts, strict=True)]


def _whole(begun: BlockBegun, text: str) -> dict[str, Any]:
    fields = begun_fields(begun)
    if begun.kind is BlockKind.TOOL_USE:
        return {**fields, "input": arguments_object(text)}
    return {**fields, TEXT_OF[begun.kind]: text}


def count_document(count: int) -> bytes:
    """Return the number of tokens in a request's input."""
    return encode({"input_tokens": count})


def error_fields(answer: ErrorAnswer, request_id: str) -> dict[str, Any]:
    """Return the error object."""
    usual = "invalid_request_error" if answer.status < 500 else "api_error"
    error = {"type": _ERROR_TYPES.get(answer.status, usual), "message": answer.message}
    return {"type": "error", "error": error, "request_id": request_id}


def error_document(answer: ErrorAnswer, request_id: str) -> bytes:
    """Return the error object as JSON."""
    return encode(error_fields(answer, request_id))


def model_fields(name: str, created: int, context_tokens: int) -> dict[str, Any]:
    """Return one model; `created` in seconds since 1970."""
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": moment(created),
        "lifecycle": "active",
        "max_input_tokens": context_tokens,
        "max_tokens": context_tokens,
    }


def models_document(models: Sequence[Mapping[str, Any]]) -> bytes:
    """Return the list of models."""
    ends = {"first_id": models[0]["id"] if models else None, "last_id": models[-1]["id"] if models else None}
    return encode({"data": models, "has_more": False, **ends})
