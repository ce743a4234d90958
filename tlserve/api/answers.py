"""What an answer is, before a family of endpoints gives it a form: its head, its cost, and what can be added to it.

Owns these types. Does not know JSON.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

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
