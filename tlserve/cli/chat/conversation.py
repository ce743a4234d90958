"""A conversation as it is typed: who said what, and with which parameters the next answer is asked for.

Owns the turns and the body of the request that they make. Refuses to know terminals and sockets.
"""

from __future__ import annotations

import attrs

Turn = dict[str, str]

OWN_FIELDS = frozenset({"messages", "model", "stream", "stream_options"})
"""What the conversation itself says in a request; everything else may be set."""


@attrs.define
class Conversation:
    """The turns so far, `system` apart; the last one is the user's while an answer is awaited.

    `unanswered` is the last question if it got no answer; it is no turn any more, and may be asked again.
    """

    model: str
    system: str = ""
    turns: list[Turn] = attrs.field(factory=list)
    options: dict[str, object] = attrs.field(factory=dict)
    unanswered: str | None = None

    def ask(self, text: str) -> None:
        """Add what the user says."""
        self.unanswered = None
        self.turns.append({"role": "user", "content": text})

    def answer(self, text: str) -> None:
        """Add what the assistant said, as far as it came; an answer without any text withdraws the question."""
        if text:
            self.turns.append({"role": "assistant", "content": text})
        else:
            self.unanswered = self.withdraw()

    def withdraw(self) -> str | None:
        """Take back the last question, with its answer if there is one; return its text, None if there is none."""
        while self.turns:
            turn = self.turns.pop()
            if turn["role"] == "user":
                return turn["content"]
        return None

    def clear(self) -> None:
        """Forget all turns; the system text and the parameters stay."""
        self.turns.clear()
        self.unanswered = None

    def document(self) -> dict[str, object]:
        """Return the request that asks for the next answer, without how it is sent."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return {"model": self.model, "messages": [*system, *self.turns], **self.options}

    def body(self) -> dict[str, object]:
        """Return the request for a streamed answer with its usage."""
        return {**self.document(), "stream": True, "stream_options": {"include_usage": True}}
