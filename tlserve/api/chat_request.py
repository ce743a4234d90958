"""The request for the next turn of a conversation, however a body spells it.

Owns the type, and the rule about members without a field. Does not know bodies: each family of endpoints reads its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from tlserve.api.json_body import MAX_DEPTH
from tlserve.api.options import GenerationOptions
from tlserve.chat.dialect import ToolUse
from tlserve.chat.messages import Turn
from tlserve.chat.thinking import NO_THINKING, Thinking
from tlserve.errors import ClientError


@attrs.frozen(kw_only=True)
class AskedTools:
    """The tools of a request: `shown` are those in the prompt, as they were sent. `use` None: no calls.

    `unknown` names the members of the tools without a field, with their paths.
    """

    shown: tuple[Mapping[str, Any], ...] = ()
    use: ToolUse | None = None
    unknown: tuple[str, ...] = ()


NO_TOOLS = AskedTools()


@attrs.frozen(kw_only=True)
class ChatRequest:
    """The turns, and how they are continued; `ignored` names the members without a field.

    `strict`: an ignored member is an error, also one that only the model's template ignores. `truncates`: turns are left out if
    the prompt is too long for the context, the oldest first. `place` is the field of the turns, for errors.
    """

    model: str
    messages: tuple[Turn, ...]
    options: GenerationOptions
    tools: AskedTools = NO_TOOLS
    thinking: Thinking = NO_THINKING
    add_generation_prompt: bool = True
    continue_final: bool = False
    strict: bool = False
    ignored: tuple[str, ...] = ()
    truncates: bool = False
    place: str = "messages"


@attrs.frozen
class BodyRules:
    """The rules of reading a body: the deepest nesting, and whether unknown fields are 400 instead of ignored."""

    max_depth: int = MAX_DEPTH
    strict: bool = False


DEFAULT_RULES = BodyRules()


def noted_names(names: tuple[str, ...], rules: BodyRules) -> tuple[str, ...]:
    """Return the names without a field; raises ClientError for the first of them if the request is strict."""
    if names and rules.strict:
        refuse_ignored(names)
    return names


def refuse_ignored(names: Sequence[str]) -> None:
    """Raise ClientError for the first of `names`, if there is one, because the request is strict."""
    if names:
        shown = names[0][:64]
        raise ClientError(
            f"{shown} is not a field of this endpoint, and the request is strict; leave it out", param=shown
        )
