"""The number of tokens in the reasoning of an answer.

A token may add no text at first, because its text is held. It waits until the next piece, and counts for the channel of that
piece. So the tag that opens the reasoning counts as reasoning, and the tag that closes it counts for the part that follows.
Tokens after the last piece count for the channel of the last piece.
"""

from __future__ import annotations

import attrs

from tlserve.chat.dialect import Channel, ChannelText, Piece


@attrs.define(eq=False)
class ReasoningTokens:
    """Counts the tokens of the reasoning; `waiting` tokens are not in a channel yet."""

    count: int = 0
    waiting: int = 0
    _is_reasoning: bool = False

    def settle(self, piece: Piece) -> None:
        """Count the waiting tokens for the channel of `piece`."""
        self._is_reasoning = isinstance(piece, ChannelText) and piece.channel is Channel.REASONING
        if self._is_reasoning:
            self.count += self.waiting
        self.waiting = 0

    def finish(self) -> None:
        """Count the waiting tokens for the channel of the last piece."""
        self.count += self.waiting if self._is_reasoning else 0
        self.waiting = 0
