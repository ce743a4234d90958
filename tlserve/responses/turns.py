"""Items -> the turns of a conversation.

Owns how items join: the reasoning, the text and the calls of one answer are one turn of the assistant. Does not know bodies: the
items are in their full form.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from tlserve.chat.messages import Role, Turn, TurnCall, parse_role
from tlserve.openai.messages import call_arguments
from tlserve.responses.items import Item

_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
INPUT = "input"
"""The argument of a custom tool, as the model sees it."""


def turns_of(items: Sequence[Item], instructions: str = "") -> tuple[Turn, ...]:
    """Return the turns; `instructions` are the first, of the system."""
    turns = [Turn(Role.SYSTEM, instructions)] if instructions else []
    for item in items:
        if item["type"] in _OUTPUTS:
            turns.append(Turn(Role.TOOL, item["output"], tool_call_id=item["call_id"]))
        elif item["type"] == "message" and item["role"] != "assistant":
            turns.append(Turn(parse_role(item["role"]), text_of(item)))
        else:
            _join(turns, _answered(item))
    return tuple(turns)


def text_of(item: Item) -> str:
    """Return the text of a message, or of reasoning."""
    return "".join(part["text"] for part in item["content"])


def _answered(item: Item) -> Turn:
    """Return the part of an answer that an item is, as a turn."""
    if item["type"] == "reasoning":
        return Turn(Role.ASSISTANT, "", reasoning=text_of(item))
    if item["type"] == "message":
        return Turn(Role.ASSISTANT, text_of(item))
    arguments = {INPUT: item["input"]} if item["type"] == "custom_tool_call" else call_arguments(item["arguments"])
    return Turn(Role.ASSISTANT, "", calls=(TurnCall(item["call_id"], item["name"], arguments),))


def _join(turns: list[Turn], part: Turn) -> None:
    """Add a part of an answer to the last turn, if that is the same answer."""
    last = turns[-1] if turns else None
    if last is None or last.role is not Role.ASSISTANT or _begins(last, part):
        turns.append(part)
        return
    reasoning = "".join(filter(None, (last.reasoning, part.reasoning))) or None
    turns[-1] = attrs.evolve(last, text=last.text + part.text, reasoning=reasoning, calls=(*last.calls, *part.calls))


def _begins(last: Turn, part: Turn) -> bool:
    """Say whether `part` begins another answer: reasoning and text follow no text."""
    return (bool(last.text) and not part.calls) or (part.reasoning is not None and bool(last.calls))
