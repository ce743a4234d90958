"""Guess the next tokens from what the sequence has said before.

Owns an index from every run of three tokens to where it stood, and how much is worth guessing. Refuses to know the model
and the sampler: a guess is never an answer, it only lets one step compute more rows. Prompt lookup decoding is described at
https://github.com/apoorvumang/prompt-lookup-decoding.

After a miss the sequence rests for a number of steps that grows fourfold, so that text without repetition costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

_KEY_TOKENS = 3
_PLACES = 8  # latest places remembered for one key
_LONGEST_MATCH = 32
_FIRST_DRAFT = 4
_LONGEST_REST = 64


class PromptLookup:
    """The drafts of one sequence; `feed` it the tokens, `draft`, then `settle` what became of the draft."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, ...], list[int]] = {}
        self._fed = 0
        self._length = _FIRST_DRAFT
        self._rest = 0
        self._penalty = 1

    def draft(self, tokens: Sequence[int], most: int) -> tuple[int, ...]:
        """Return at most `most` tokens that followed the longest earlier match of the end of `tokens`; the latest wins a tie."""
        if self._rest:
            self._rest -= 1
            return ()
        self._feed(tokens)
        start = self._best_match(tokens)
        return () if start < 0 else _following(tokens, start, min(most, self._length))

    def settle(self, drafted: int, accepted: int) -> None:
        """Learn that `accepted` of `drafted` tokens were right: guess more after a hit, rest after a miss."""
        if accepted:
            self._length = min(2 * self._length, _LONGEST_MATCH) if accepted == drafted else max(1, accepted)
            self._penalty = 1
        else:
            self._length = 1
            self._rest = self._penalty = min(4 * self._penalty, _LONGEST_REST)

    def _feed(self, tokens: Sequence[int]) -> None:
        """Index the places before the last token: a run must have a token after it."""
        for end in range(max(self._fed, _KEY_TOKENS), len(tokens)):
            places = self._places.setdefault(tuple(tokens[end - _KEY_TOKENS : end]), [])
            places.append(end)
            del places[:-_PLACES]
        self._fed = len(tokens)

    def _best_match(self, tokens: Sequence[int]) -> int:
        places = self._places.get(tuple(tokens[-_KEY_TOKENS:]), ())
        return max(places, key=lambda end: (_match_length(tokens, end), end), default=-1)


def _match_length(tokens: Sequence[int], end: int) -> int:
    length = 0
    while length < min(end, _LONGEST_MATCH) and tokens[end - 1 - length] == tokens[-1 - length]:
        length += 1
    return length


def _following(tokens: Sequence[int], start: int, count: int) -> tuple[int, ...]:
    """Return `count` tokens from `start` on; a run that reaches the end goes on in itself, as a repetition does."""
    period = len(tokens) - start
    return tuple(tokens[start + offset % period] for offset in range(count))
