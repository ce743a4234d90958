"""Responses, lists of items, and the result of a deletion as JSON.

Owns the shape of every document that is sent in one piece. Does not know how an answer came about.

Source: the public reference of the Responses API. `cache_write_tokens` is 0, because nothing is written to a cache on request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tlserve.api.answers import Usage
from tlserve.api.errors import ErrorAnswer
from tlserve.responses.items import Item

encode = msgspec.json.encode
QUEUED = "queued"
IN_PROGRESS = "in_progress"
COMPLETED = "completed"
INCOMPLETE = "incomplete"
FAILED = "failed"
CANCELLED = "cancelled"
RUNNING = (QUEUED, IN_PROGRESS)


def response_fields(
    head: Mapping[str, Any],
    status: str,
    *,
    output: Sequence[Item] = (),
    usage: Usage | None = None,
    error: ErrorAnswer | None = None,
    completed_at: int | None = None,
) -> dict[str, Any]:
    """Return a response; `head` has what does not change while it is made."""
    return {
        **head,
        "status": status,
        "error": None if error is None else error_fields(error),
        "incomplete_details": {"reason": "max_output_tokens"} if status == INCOMPLETE else None,
        "completed_at": completed_at,
        "output": output,
        "usage": None if usage is None else usage_fields(usage),
    }


def usage_fields(usage: Usage) -> dict[str, Any]:
    """Return the `usage` object."""
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning},
        "total_tokens": usage.prompt + usage.completion,
    }


def error_fields(answer: ErrorAnswer) -> dict[str, Any]:
    """Return the `error` object of a response that failed; its codes are few."""
    code = "server_error" if answer.status >= 500 else "invalid_prompt"
    return {"code": "rate_limit_exceeded" if answer.status == 429 else code, "message": answer.message}


def deleted_document(response: str) -> bytes:
    """Return the result of a deletion."""
    return encode({"id": response, "object": "response", "deleted": True})


def count_document(count: int) -> bytes:
    """Return the number of tokens in a request's input."""
    return encode({"object": "response.input_tokens", "input_tokens": count})


def page_document(items: Sequence[Item], *, has_more: bool) -> bytes:
    """Return a page of items."""
    ends = {"first_id": items[0]["id"] if items else None, "last_id": items[-1]["id"] if items else None}
    return encode({"object": "list", "data": items, "has_more": has_more, **ends})
