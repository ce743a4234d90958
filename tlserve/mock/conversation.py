"""The canonical conversation: what a request says, whichever API it came through.

Owns the types and the count of answers. Does not know documents; `tlserve.mock.readers` makes conversations from those.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterable, Iterator, Sequence

import attrs


class Speaker(enum.Enum):
    """Who says a message; `TOOL` is the result of a call."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@attrs.frozen
class PastCall:
    """A call in an earlier answer; `arguments` are JSON text as the client sent it."""

    id: str
    name: str
    arguments: str


@attrs.frozen
class CanonicalMessage:
    """One message; `tool` is the name of the tool of a result, "" if no earlier call has its id."""

    role: Speaker
    text: str = ""
    calls: tuple[PastCall, ...] = ()
    tool: str = ""


@attrs.frozen(kw_only=True)
class CanonicalConversation:
    """What a request says: its model, its messages in order, and the names of the tools that it offers."""

    model: str
    messages: tuple[CanonicalMessage, ...]
    tools: tuple[str, ...] = ()

    @property
    def last_user(self) -> int:
        """Return the index of the last message of the user, -1 without one."""
        return max((i for i, message in enumerate(self.messages) if message.role is Speaker.USER), default=-1)

    @property
    def user(self) -> str:
        """Return the text of the last message of the user, "" without one."""
        place = self.last_user
        return self.messages[place].text if place >= 0 else ""

    @property
    def system(self) -> str:
        """Return the text of all messages of the system, one a line."""
        return "\n".join(message.text for message in self.messages if message.role is Speaker.SYSTEM)

    @property
    def answers(self) -> int:
        """Return the number of answers since the last message of the user.

        An unfinished answer at the end of the messages does not count: the request asks for its continuation.
        """
        since = self.messages[self.last_user + 1 :]
        ended = (after.role is not Speaker.ASSISTANT for after in since[1:])
        return sum(message.role is Speaker.ASSISTANT and end for message, end in zip(since, ended, strict=False))

    def results(self) -> dict[str, str]:
        """Return the results of calls since the last answer, by the name of the tool."""
        results: dict[str, str] = {}
        for message in reversed(self.messages):
            if message.role is not Speaker.TOOL:
                break
            results.setdefault(message.tool, message.text)
        return results


def canonical(messages: Iterable[CanonicalMessage]) -> tuple[CanonicalMessage, ...]:
    """Return the messages with neighbouring parts of one answer as one, and each result with the name of its tool.

    The parts of an answer are separate in some APIs. `tool` of a result holds the id of its call when it comes in; a result
    without an id of an earlier call keeps it.
    """
    parts = itertools.groupby(_named(messages, {}), lambda message: message.role is Speaker.ASSISTANT)
    return tuple(message for is_answer, own in parts for message in ([_joined(list(own))] if is_answer else own))


def _joined(parts: Sequence[CanonicalMessage]) -> CanonicalMessage:
    calls = tuple(call for part in parts for call in part.calls)
    return CanonicalMessage(Speaker.ASSISTANT, "".join(part.text for part in parts), calls)


def _named(messages: Iterable[CanonicalMessage], names: dict[str, str]) -> Iterator[CanonicalMessage]:
    for message in messages:
        for call in message.calls:
            names[call.id] = call.name
        yield attrs.evolve(message, tool=names.get(message.tool, message.tool)) if message.tool else message
