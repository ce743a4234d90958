r"""Log-probabilities as JSON, in the three forms of the API.

Owns the forms: that of chat, the older one of completions, and that of a prompt. Does not know how an answer was generated.

Source: the public API reference of chat (`logprobs.content`) and of completions (`logprobs`, whose tokens that are not whole
text are written `bytes:\xe2\x80`); the `prompt_logprobs` of vLLM,
and its `token_id:N` for tokens by id.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tlserve.chat.logprob_entries import LogprobEntry, TokenChoice


def chat_logprobs(entries: Iterable[LogprobEntry] | None) -> dict[str, Any] | None:
    """Return the `logprobs` of a chat choice; None if they were not requested."""
    return None if entries is None else {"content": [_chat_entry(entry) for entry in entries], "refusal": None}


def _chat_entry(entry: LogprobEntry) -> dict[str, Any]:
    top = [_chat_token(other, entry.by_id) for other in entry.top]
    return {**_chat_token(entry.chosen, entry.by_id), "top_logprobs": top}


def _chat_token(choice: TokenChoice, by_id: bool) -> dict[str, Any]:
    """Return one likelihood; `token` shows U+FFFD where the bytes are not whole characters, `bytes` are raw."""
    token = _id_of(choice) if by_id else _shown(choice)
    return {"token": token, "logprob": choice.logprob, "bytes": list(choice.bytes)}


def _id_of(choice: TokenChoice) -> str:
    return f"token_id:{choice.token}"


def _shown(choice: TokenChoice) -> str:
    return choice.bytes.decode(errors="replace")


def completion_logprobs(entries: Sequence[LogprobEntry] | None) -> dict[str, Any] | None:
    """Return the `logprobs` of a completion's choice; None where they were not asked for.

    `top_logprobs` have the token itself in addition to the likeliest, as in the public API. Of tokens with the same text the
    likelier one is listed. Offsets count characters of the choice's text.
    """
    if entries is None:
        return None
    return {
        "tokens": [_written(entry.chosen, entry.by_id) for entry in entries],
        "token_logprobs": [entry.chosen.logprob for entry in entries],
        "top_logprobs": [_top(entry) for entry in entries],
        "text_offset": [entry.offset for entry in entries],
    }


def _top(entry: LogprobEntry) -> dict[str, float | None] | None:
    if entry.chosen.logprob is None:
        return None
    likelihoods: dict[str, float | None] = {}
    for choice in (*entry.top, entry.chosen):
        likelihoods.setdefault(_written(choice, entry.by_id), choice.logprob)
    return likelihoods


def _written(choice: TokenChoice, by_id: bool) -> str:
    """Return the text of a token, or its bytes if they are not whole characters, which text could not tell apart."""
    if by_id:
        return _id_of(choice)
    try:
        return choice.bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in choice.bytes)


def prompt_logprobs(entries: Iterable[LogprobEntry]) -> list[dict[str, Any] | None]:
    """Return a prompt's log-probabilities: for each token id -> likelihood of itself and the likeliest; null for the first."""
    return [None if entry.chosen.logprob is None else _by_id(entry) for entry in entries]


def _by_id(entry: LogprobEntry) -> dict[str, Any]:
    ranks = {choice.token: rank for rank, choice in enumerate(entry.top, 1)}
    choices = {choice.token: choice for choice in (entry.chosen, *entry.top)}
    return {
        str(token): {"logprob": choice.logprob, "rank": ranks.get(token), "decoded_token": _shown(choice)}
        for token, choice in choices.items()
    }
