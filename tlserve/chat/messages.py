"""The turns of a conversation, as every dialect and template sees them.

Owns the roles and the frozen type of a turn. Refuses to know JSON (`tlserve.openai` parses it) and templates.

Source: the public API reference, `messages`; a developer's turn is a system turn under its newer name.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import attrs

from tlserve.errors import ClientError


class Role(enum.Enum):
    """Who speaks."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


_NAMES = {role.value: role for role in Role} | {"developer": Role.SYSTEM}


def parse_role(name: str, *, param: str = "messages") -> Role:
    """Return the role that `name` means; raises ClientError for one that is not known, never guessing."""
    role = _NAMES.get(name)
    if role is None:
        raise ClientError(f"the role {name[:64]!r} is not one of {', '.join(sorted(_NAMES))}", param=param)
    return role


@attrs.frozen
class TurnCall:
    """A call that an earlier answer made: its arguments as an object, or as the text it was if that was no JSON object."""

    id: str
    name: str
    arguments: Mapping[str, Any] | str


@attrs.frozen
class Turn:
    """One message. What is optional reaches the template only where it is given; `calls` and `reasoning` are an assistant's."""

    role: Role
    text: str
    name: str | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    calls: tuple[TurnCall, ...] = ()
