"""Log-probabilities, and the text that they belong to.

Owns the entry of one token, its place in the text, and which entries can be sent once some of the text is sent. Knows nothing of
dialects and JSON.
"""

from __future__ import annotations

from collections import deque

import attrs


@attrs.frozen
class TokenChoice:
    """A token that was chosen, or a likely alternative: its id, its raw bytes, its natural-log probability.

    `logprob` is None for the first token of a prompt, because no token comes before it.
    """

    token: int
    bytes: bytes
    logprob: float | None


@attrs.frozen
class LogprobEntry:
    """One token of the answer, and the likeliest tokens at its place. The chosen bytes of all entries, joined, are the content.

    `offset` is the number of characters before the character that its first byte belongs to. `by_id`: tokens are shown as ids.
    """

    chosen: TokenChoice
    top: tuple[TokenChoice, ...] = ()
    offset: int = 0
    by_id: bool = False


@attrs.define(eq=False)
class EntryQueue:
    """Entries that wait for their text: each is sent with the character that its first byte belongs to.

    `read` is the number of characters that the detokenizer has returned so far.
    """

    read: int = 0
    _waiting: deque[LogprobEntry] = attrs.field(factory=deque)

    def append(self, entry: LogprobEntry) -> None:
        """Add the entry of the next token."""
        self._waiting.append(entry)

    def take(self, held: int) -> tuple[LogprobEntry, ...]:
        """Return the entries whose first character is sent; the last `held` characters are not sent."""
        out = []
        while self._waiting and self._waiting[0].offset < self.read - held:
            out.append(self._waiting.popleft())
        return tuple(out)

    def take_all(self) -> tuple[LogprobEntry, ...]:
        """Return all entries, because the answer has ended and nothing is held."""
        out = tuple(self._waiting)
        self._waiting.clear()
        return out
