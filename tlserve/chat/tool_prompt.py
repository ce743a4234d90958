"""Tools described in the text of the prompt, for templates that have no place for them.

The tools go into the system turn, or into the first user turn if the template takes no system turn and the client sent none.
Earlier calls become text in the form of the dialect `hermes`, and their results text of the user if the template would not print
them. All of it goes where a
client's text would go, so that none of it can become a control token.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from tlserve.chat.messages import Role, Turn, TurnCall

Tools = Sequence[Mapping[str, Any]]

_INTRODUCTION = """# Tools

You may call functions to help the user. These are there, each as JSON:
<tools>
{tools}
</tools>

To call one, write its name and arguments as JSON between these tags, and nothing after the last call:
<tool_call>
{{"name": "the_function", "arguments": {{"a_parameter": "its value"}}}}
</tool_call>"""


def with_tools_described(turns: Sequence[Turn], tools: Tools, *, takes_system: bool = True) -> list[Turn]:
    """Return the turns with the tools in the system turn, which is added if there is none.

    If the template takes no system turn, the first user turn begins with them.
    """
    if not tools:
        return list(turns)
    words = _INTRODUCTION.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if takes_system and turns and turns[0].role is Role.SYSTEM:
        return [attrs.evolve(turns[0], text=f"{turns[0].text}\n\n{words}".lstrip()), *turns[1:]]
    first_user = next((place for place, turn in enumerate(turns) if turn.role is Role.USER), None)
    if takes_system or first_user is None:
        return [Turn(Role.SYSTEM, words), *turns]
    asked = turns[first_user]
    return [*turns[:first_user], attrs.evolve(asked, text=f"{words}\n\n{asked.text}"), *turns[first_user + 1 :]]


def with_calls_as_text(turn: Turn) -> Turn:
    """Return the turn with its calls as text."""
    parts = [turn.text, *map(_call_words, turn.calls)]
    return attrs.evolve(turn, text="\n".join(filter(None, parts)), calls=()) if turn.calls else turn


def with_results_as_text(turns: Sequence[Turn]) -> list[Turn]:
    """Return the turns with the results of calls as text of the user: those that follow each other, and a user's turn, as one."""
    found: list[Turn] = []
    is_result = False
    for turn in turns:
        own = turn
        if turn.role is Role.TOOL:
            own = Turn(Role.USER, f"<tool_response>\n{turn.text}\n</tool_response>")
        if is_result and own.role is Role.USER:
            own = attrs.evolve(own, text=f"{found.pop().text}\n{own.text}")
        found.append(own)
        is_result = turn.role is Role.TOOL
    return found


def _call_words(call: TurnCall) -> str:
    arguments = call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments, ensure_ascii=False)
    return f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {arguments}}}\n</tool_call>'
