"""Drafts of the next tokens, taken from earlier in the same sequence, and how likely they are to be drawn.

Owns an index from every run of three tokens to its places, and how often matches of each length continued as guessed. Knows
nothing of the model and the sampler: a draft never changes an answer, it only lets one step compute more rows. Prompt lookup
decoding is described at https://github.com/apoorvumang/prompt-lookup-decoding.

Every token is compared with the one that its match predicted, whether that was drafted or not. So text without repetition
loses its drafts, and text that begins to repeat itself gets them, and no row is spent to find that out.
"""

from __future__ import annotations

from collections.abc import Sequence

_KEY_TOKENS = 3
_PLACES = 8  # the latest places of one key that are compared
_LONGEST_MATCH = 32
_FIRST_CHANCES = (
    0.3,
    0.5,
    0.75,
    0.9,
    0.95,
)  # that a match of 3, 4-7, 8-15, 16-31, 32 or more tokens continues for one more
_LEARNED_SHARE = 1 / 16  # of a chance, from one token

STEP_ROWS = 4
"""The fixed cost of a step, in rows: 4 to 6 as measured with 135M parameters on two cores."""


def least_chance(sequences: int) -> float:
    """Return the least chance at which a draft is worth its row, in a step in which `sequences` decode.

    A step of n rows takes STEP_ROWS + n, and gives n tokens without drafts: a token is worth (STEP_ROWS + n) / n, a row costs 1.
    """
    return sequences / (STEP_ROWS + sequences)


class PromptLookup:
    """The drafts of one sequence: call `draft` in each step."""

    def __init__(self) -> None:
        self._latest: dict[tuple[int, ...], int] = {}  # of a run of three: the latest place after it
        self._earlier: list[int] = [-1] * _KEY_TOKENS  # of a place: the one before it after the same run, or -1
        self._fed = 0
        self._guess = -1  # the place of the token that the match predicts next
        self._matched = 0  # tokens of the match
        self._chances = list(_FIRST_CHANCES)

    def draft(self, tokens: Sequence[int], most: int, chance: float = 0.0) -> tuple[int, ...]:
        """Return at most `most` tokens that followed the longest earlier match of the end of `tokens`; the latest wins a tie.

        `chance`: the least probability that all of them are drawn.
        """
        if self._fed:
            for place in range(self._fed, len(tokens)):
                self._compare(tokens[place], tokens)
        self._index(tokens)
        if self._guess < 0:
            self._match(tokens)
        return () if self._guess < 0 else _following(tokens, self._guess, self._worth(most, chance))

    def _compare(self, token: int, tokens: Sequence[int]) -> None:
        """Learn from the next token whether the match continued."""
        if self._guess < 0:
            return
        hit = tokens[self._guess] == token
        kind = _kind(self._matched)
        self._chances[kind] += (hit - self._chances[kind]) * _LEARNED_SHARE
        self._guess, self._matched = (self._guess + 1, self._matched + 1) if hit else (-1, 0)

    def _index(self, tokens: Sequence[int]) -> None:
        """Index the places before the last token: a run must have a token after it."""
        latest, earlier = self._latest, self._earlier
        for place in range(max(self._fed, _KEY_TOKENS), len(tokens)):
            key = tuple(tokens[place - _KEY_TOKENS : place])
            earlier.append(latest.get(key, -1))
            latest[key] = place
        self._fed = len(tokens)

    def _match(self, tokens: Sequence[int]) -> None:
        """Find the longest match of the end of `tokens` among the latest places."""
        place = self._latest.get(tuple(tokens[-_KEY_TOKENS:]), -1)
        for _ in range(_PLACES):
            if place < 0:
                break
            length = _match_length(tokens, place)
            if length > self._matched:
                self._guess, self._matched = place, length
            place = self._earlier[place]

    def _worth(self, most: int, chance: float) -> int:
        """Return how many tokens in a row, up to `most`, are together at least as likely as `chance`."""
        likely, count = 1.0, 0
        while count < most:
            likely *= self._chances[_kind(self._matched + count)]
            if likely < chance:
                break
            count += 1
        return count


def _kind(matched: int) -> int:
    """Return the place in `_FIRST_CHANCES` for a match of `matched` tokens."""
    return min(matched, _LONGEST_MATCH).bit_length() - 2


def _match_length(tokens: Sequence[int], end: int) -> int:
    length = 0
    while length < min(end, _LONGEST_MATCH) and tokens[end - 1 - length] == tokens[-1 - length]:
        length += 1
    return length


def _following(tokens: Sequence[int], start: int, count: int) -> tuple[int, ...]:
    """Return `count` tokens from `start` on; a run that reaches the end starts again at `start`, as a repetition does."""
    end = start + count
    if end <= len(tokens):
        return tuple(tokens[start:end])
    period = len(tokens) - start
    return tuple(tokens[start + offset % period] for offset in range(count))
