"""The log-probabilities of a prompt -> entries like those of an answer.

Collects the events of a prompt, and adds the prompt's first token, which has no log-probability. Knows nothing of JSON.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from tlserve.chat.logprob_entries import LogprobEntry, TokenChoice
from tlserve.generation import PromptLogprobs, PromptToken, TokenLogprob
from tlserve.text.offsets import offsets_in
from tlserve.text.tokenizer import Tokenizer


class PromptEntries:
    """Collects the entries of the prompt `ids`; control tokens have their spelling as well."""

    def __init__(self, tokenizer: Tokenizer, ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = ids
        self._entries = [LogprobEntry(self._choice(ids[0], None))]

    def feed(self, event: PromptLogprobs) -> None:
        """Take the next tokens of the prompt; raises RuntimeError if tokens are missing or repeated."""
        if event.start != len(self._entries):
            raise RuntimeError(f"the backend gave the prompt's tokens from {event.start}, not {len(self._entries)}")
        self._entries += map(self._entry, event.tokens)

    def entries(self, top: int) -> tuple[LogprobEntry, ...]:
        """Return the entries so far, each with at most the `top` likeliest tokens."""
        return tuple(attrs.evolve(entry, top=entry.top[:top]) for entry in self._entries)

    def entries_in(self, text: str, top: int) -> tuple[LogprobEntry, ...]:
        """Return the entries with their places in `text`: the text of the request, or the text that the ids spell.

        Raises RuntimeError if some entries are missing.
        """
        if len(self._entries) != len(self._ids):
            raise RuntimeError(f"the backend gave {len(self._entries)} of the prompt's {len(self._ids)} tokens")
        visible = list(map(self._tokenizer.token_bytes, self._ids))
        spelled = list(map(self._tokenizer.token_spelling, self._ids))
        offsets = offsets_in(text, visible, spelled, [b"", *spelled[1:]])
        entries = zip(self.entries(top), offsets, strict=True)
        return tuple(attrs.evolve(entry, offset=offset) for entry, offset in entries)

    def _entry(self, token: PromptToken) -> LogprobEntry:
        return LogprobEntry(self._choice(token.token, token.logprob), tuple(map(self._likely, token.top)))

    def _likely(self, token: TokenLogprob) -> TokenChoice:
        return self._choice(token.token, token.logprob)

    def _choice(self, token: int, logprob: float | None) -> TokenChoice:
        return TokenChoice(token, self._tokenizer.token_spelling(token), logprob)
