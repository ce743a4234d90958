"""What an answer is, before a family of endpoints gives it a form: its head, its cost, and what can be added to it.

Owns these types, and the forms of a time and of a call's arguments that several families use. Does not know documents.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import attrs
import msgspec

from tlserve.chat.logprob_entries import LogprobEntry


@attrs.frozen(kw_only=True)
class AnswerHead:
    """What all documents of one answer share; `created` in seconds since 1970."""

    id: str
    created: int
    model: str
    system_fingerprint: str


@attrs.frozen(kw_only=True)
class Usage:
    """The tokens of an answer; `cached` of the prompt's came from the prefix cache, `reasoning` are part of the answer."""

    prompt: int
    completion: int
    cached: int = 0
    reasoning: int = 0


@attrs.frozen(kw_only=True)
class Extras:
    """What a choice has only on request, each None without one: ids, and the log-probabilities of the prompt."""

    token_ids: Sequence[int] | None = None
    prompt_token_ids: Sequence[int] | None = None
    prompt_logprobs: Sequence[LogprobEntry] | None = None


NO_EXTRAS = Extras()


def moment(seconds: float) -> str:
    """Return a time, in seconds since 1970, as text (RFC 3339, UTC)."""
    return datetime.datetime.fromtimestamp(seconds, datetime.UTC).isoformat().replace("+00:00", "Z")


def arguments_object(text: str) -> dict[str, Any]:
    """Return the arguments of a call as an object; those that the limit of tokens has cut are empty."""
    try:
        decoded = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return {}
    return decoded if isinstance(decoded, dict) else {}
