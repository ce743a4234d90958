"""A conversation as it is typed: its turns, and the parameters of the next answer.

Owns the turns and the request body made of them. Knows nothing of terminals and sockets.
"""

from __future__ import annotations

import attrs

Turn = dict[str, str]

OWN_FIELDS = frozenset({"messages", "model", "stream", "stream_options"})
"""The request fields that the conversation itself sets; the user can set all others."""


@attrs.define
class Conversation:
    """The turns so far, without `system`; the last one is the user's while the answer is awaited.

    `unanswered` is the last question if it got no answer; it is no longer a turn, and can be sent again.
    """

    model: str
    system: str = ""
    turns: list[Turn] = attrs.field(factory=list)
    options: dict[str, object] = attrs.field(factory=dict)
    unanswered: str | None = None

    def ask(self, text: str) -> None:
        """Add a turn of the user."""
        self.unanswered = None
        self.turns.append({"role": "user", "content": text})

    def answer(self, text: str) -> None:
        """Add the assistant's answer, complete or not; an answer without text withdraws the question."""
        if text:
            self.turns.append({"role": "assistant", "content": text})
        else:
            self.unanswered = self.withdraw()

    def withdraw(self) -> str | None:
        """Remove the last question, with its answer if there is one; return its text, or None without a question."""
        while self.turns:
            turn = self.turns.pop()
            if turn["role"] == "user":
                return turn["content"]
        return None

    def clear(self) -> None:
        """Remove all turns; the system text and the parameters stay."""
        self.turns.clear()
        self.unanswered = None

    def document(self) -> dict[str, object]:
        """Return the request for the next answer, without the fields about streaming."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return {"model": self.model, "messages": [*system, *self.turns], **self.options}

    def body(self) -> dict[str, object]:
        """Return the request for a streamed answer with its usage."""
        return {**self.document(), "stream": True, "stream_options": {"include_usage": True}}
