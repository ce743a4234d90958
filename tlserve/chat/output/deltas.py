"""The deltas of an answer, and the whole answer as their fold."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from tlserve.chat.logprob_entries import LogprobEntry
from tlserve.generation import Finish


@attrs.frozen
class CallDelta:
    """The text that one step adds to the call `index`; only the first delta of a call has `id` and `name`."""

    index: int
    arguments: str = ""
    id: str = ""
    name: str = ""


@attrs.frozen
class AnswerCall:
    """A call of an answer; `arguments` are a whole JSON object unless the answer was cut."""

    id: str
    name: str
    arguments: str


@attrs.frozen(kw_only=True)
class Delta:
    """What one step adds to an answer.

    The last delta has `finish`, the stop string that ended the answer, if one did, and `called` if the answer ends in calls that
    the model chose.
    """

    content: str = ""
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()
    logprobs: tuple[LogprobEntry, ...] = ()
    finish: Finish | None = None
    stop_string: str = ""
    called: bool = False


NOTHING = Delta()


@attrs.frozen(kw_only=True)
class Answer:
    """A whole answer; `finish` is None if the stream was cut."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[AnswerCall, ...] = ()
    logprobs: tuple[LogprobEntry, ...] = ()
    finish: Finish | None = None
    called: bool = False


def fold(deltas: Iterable[Delta]) -> Answer:
    """Return the answer that `deltas` add up to, in order."""
    parts = list(deltas)
    return Answer(
        content="".join(delta.content for delta in parts),
        reasoning="".join(delta.reasoning for delta in parts),
        calls=_fold_calls(piece for delta in parts for piece in delta.calls),
        logprobs=tuple(entry for delta in parts for entry in delta.logprobs),
        finish=next((delta.finish for delta in reversed(parts) if delta.finish is not None), None),
        called=any(delta.called for delta in parts),
    )


def _fold_calls(pieces: Iterable[CallDelta]) -> tuple[AnswerCall, ...]:
    calls: dict[int, list[CallDelta]] = {}
    for piece in pieces:
        calls.setdefault(piece.index, []).append(piece)
    return tuple(
        AnswerCall(own[0].id, own[0].name, "".join(piece.arguments for piece in own)) for own in calls.values()
    )
