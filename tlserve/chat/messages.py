"""The turns of a conversation, as every dialect and template gets them.

Owns the roles and the type of a turn. Knows nothing of JSON (`tlserve.openai` parses it) and templates.

Source: the public API reference, `messages`; `developer` is the newer name of the role `system`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import attrs

from tlserve.errors import ClientError


class Role(enum.Enum):
    """The author of a turn."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


_NAMES = {role.value: role for role in Role} | {"developer": Role.SYSTEM}


def parse_role(name: str, *, param: str = "messages") -> Role:
    """Return the role for `name`; raises ClientError for an unknown name, and never guesses."""
    role = _NAMES.get(name)
    if role is None:
        raise ClientError(f"the role {name[:64]!r} is not one of {', '.join(sorted(_NAMES))}", param=param)
    return role


@attrs.frozen
class TurnCall:
    """A call of an earlier answer: its arguments as an object, or as text if the text was not a JSON object."""

    id: str
    name: str
    arguments: Mapping[str, Any] | str


@attrs.frozen
class Turn:
    """One message. Optional fields reach the template only if they are given; only an assistant has `calls` and `reasoning`."""

    role: Role
    text: str
    name: str | None = None
    tool_call_id: str | None = None
    reasoning: str | None = None
    calls: tuple[TurnCall, ...] = ()
