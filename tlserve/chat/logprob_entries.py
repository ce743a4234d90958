"""Log-probabilities with the text that they belong to.

Owns the entry of one token, its place in the text, and which entries may go out once some of the text has. Refuses to know how
text is read, and JSON.
"""

from __future__ import annotations

from collections import deque

import attrs


@attrs.frozen
class TokenChoice:
    """A token that was or might have been drawn: its id, its raw bytes, its natural-log probability.

    `logprob` None: the first token of a prompt, which nothing comes before.
    """

    token: int
    bytes: bytes
    logprob: float | None


@attrs.frozen
class LogprobEntry:
    """One token of the answer and the likeliest at its place. The chosen bytes of all entries, joined, spell the content.

    `offset`: characters of the text before the one that its first byte belongs to.
    """

    chosen: TokenChoice
    top: tuple[TokenChoice, ...] = ()
    offset: int = 0


class EntryQueue:
    """Entries that wait for their text: each goes out with the character that its first byte belongs to.

    `read` counts the characters that the detokenizer gave so far.
    """

    def __init__(self) -> None:
        self.read = 0
        self._waiting: deque[LogprobEntry] = deque()

    @property
    def are_waiting(self) -> bool:
        """Say whether any entry waits."""
        return bool(self._waiting)

    def append(self, entry: LogprobEntry) -> None:
        """Add the entry of a token whose bytes come next."""
        self._waiting.append(entry)

    def take(self, held: int) -> tuple[LogprobEntry, ...]:
        """Return the entries whose first character is out; `held` characters are not."""
        out = []
        while self._waiting and self._waiting[0].offset < self.read - held:
            out.append(self._waiting.popleft())
        return tuple(out)

    def take_all(self) -> tuple[LogprobEntry, ...]:
        """Return all entries: the answer has ended, and nothing is held any more."""
        out = tuple(self._waiting)
        self._waiting.clear()
        return out
