"""The turns of a conversation, as every dialect and template gets them.

Owns the roles and the type of a turn. Knows nothing of JSON (`tlserve.openai` parses it) and templates.

Source: the public API reference, `messages`; `developer` is the newer name of the role `system`.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping, Sequence
from itertools import takewhile
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


SHORT_BYTES = 256
"""Turns with less text than this may be shorter than the tokens by which a fleet recognises a conversation (64)."""


def conversation_of(turns: Sequence[Turn]) -> str:
    """Return a name for a conversation that begins with little text, the same for all its requests; "" for others.

    The name is that of the turns before the first answer.
    """
    beginning = takewhile(lambda turn: turn.role is not Role.ASSISTANT, turns)
    texts = [text for turn in beginning for text in (turn.role.value, turn.name or "", turn.text)]
    parts = [text.encode(errors="surrogatepass") for text in texts]
    if sum(map(len, parts)) >= SHORT_BYTES:
        return ""
    data = b"".join(len(part).to_bytes(2, "little") + part for part in parts)
    return hashlib.blake2b(data, digest_size=16, person=b"conversation").hexdigest()
