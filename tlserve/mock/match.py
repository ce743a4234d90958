"""Which turn of a script answers a conversation, or what is the nearest one and where the conversation differs from it.

Owns the choice, which depends on the conversation alone: retries, parallel tests and restarts agree. Keeps no state.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

import attrs

from tlserve.mock.conversation import CanonicalConversation
from tlserve.mock.patterns import fits
from tlserve.mock.script import Expect, Script, ScriptTurn, Talk

_COMPARED_CHARACTERS = 200
_COMPARED_TALKS = 200


@attrs.frozen
class Found:
    """The turn that answers; `number` counts from 1. An echo has no turn."""

    talk: Talk
    number: int
    turn: ScriptTurn | None

    @property
    def name(self) -> str:
        """Return the name of the turn, such as "weather/2"."""
        return f"{self.talk.name}/{self.number}" if self.turn is not None else self.talk.name


@attrs.frozen
class Miss:
    """No turn answers; `reason` names the nearest one and the first difference."""

    reason: str


def choose(script: Script, conversation: CanonicalConversation) -> Found | Miss:
    """Return the turn: that of the first talk that fits the last message of the user, by the answers since then."""
    talk = next((talk for talk in script.talk if fits(talk.user, conversation.user)), None)
    if talk is None:
        return Miss(_nearest_talk(script, conversation))
    number = conversation.answers + 1
    if talk.answer == "echo":
        return Found(talk, number, None)
    if number > len(talk.turn):
        count = len(talk.turn)
        return Miss(
            f"the talk {talk.name!r} has {count} turn{'s' * (count != 1)}, and the conversation has {number - 1} "
            f"answers since the user's message; add turn {number}, or end the conversation before it"
        )
    turn = talk.turn[number - 1]
    difference = next(_differences(turn.expect, conversation), None)
    if difference is not None:
        return Miss(f"the nearest turn is {talk.name}/{number}, which differs: {difference}")
    return Found(talk, number, turn)


def _differences(expect: Expect, conversation: CanonicalConversation) -> Iterator[str]:
    for name, pattern, got in (
        ("model", expect.model, conversation.model),
        ("system", expect.system, conversation.system),
    ):
        if pattern is not None and not fits(pattern, got):
            yield f"expect.{name} is {pattern!r}, the request has {_short(got)}"
    missing = [name for name in expect.tools or () if name not in conversation.tools]
    if missing:
        yield f"expect.tools has {missing[0]!r}, the request offers {list(conversation.tools)}"
    results = conversation.results()
    for tool, pattern in expect.result.items():
        if tool not in results:
            yield f"expect.result.{tool} is {pattern!r}, the request has no result of this tool"
        elif not fits(pattern, results[tool]):
            yield f"expect.result.{tool} is {pattern!r}, the request has {_short(results[tool])}"


def _nearest_talk(script: Script, conversation: CanonicalConversation) -> str:
    user = conversation.user[:_COMPARED_CHARACTERS]
    if not script.talk:
        return f"the script has no talks; the user's message is {_short(user)}"
    matcher = difflib.SequenceMatcher(b=user, autojunk=False)

    def likeness(talk: Talk) -> float:
        matcher.set_seq1(talk.user.strip("~/")[:_COMPARED_CHARACTERS])
        return matcher.ratio()

    nearest = max(script.talk[:_COMPARED_TALKS], key=likeness)
    return (
        f"the nearest talk is {nearest.name!r}, which differs: user is {nearest.user!r}, the request has {_short(user)}"
    )


def _short(text: str) -> str:
    return repr(text if len(text) <= _COMPARED_CHARACTERS else text[:_COMPARED_CHARACTERS] + "...")
