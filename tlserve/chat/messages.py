"""The turns of a conversation, as every dialect and template sees them.

Owns the roles and the frozen type of a turn. Refuses to know JSON (`tlserve.openai` parses it) and templates.

Source: the public API reference, `messages`; a developer's turn is a system turn under its newer name.
"""

from __future__ import annotations

import enum

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
class Turn:
    """One message. `name` and `tool_call_id` reach the template only where they are given."""

    role: Role
    text: str
    name: str | None = None
    tool_call_id: str | None = None
