"""The members of `messages` -> turns of a conversation.

Owns the shape of each role's message and of content parts. Does not know templates: `tlserve.chat` renders the turns. Text parts
are joined in order, so that they give the same prompt as the plain string.

An assistant's reasoning (`reasoning_content`, or `reasoning`) is read only in its own messages. The arguments of a call that are
not a JSON object stay text: a model wrote them, and its client only returns them.

Source: the public API reference, `messages`; vLLM for `reasoning_content`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeGuard

import msgspec
from msgspec import Meta, Raw, Struct

from tlserve.api.fields import Table, inert, later, read_fields, served
from tlserve.chat.messages import Turn, TurnCall, parse_role
from tlserve.chat.output.json_scan import is_json
from tlserve.errors import ClientError, Refusal

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class PlainMessage(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """The form of most messages; a conversation with only these is decoded in one pass."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str
    name: str | None = None


class CalledFunction(Struct, frozen=True):
    """A function that was called: its arguments as JSON text, or as the object itself."""

    name: Annotated[str, Meta(min_length=1)]
    arguments: str | dict[str, Any] | None = None


class MessageCall(Struct, frozen=True):
    """A call in an earlier answer."""

    id: Annotated[str, Meta(min_length=1)]
    function: CalledFunction
    type: Literal["function"] = "function"


class TextPart(Struct, tag_field="type", tag="text", frozen=True):
    """A part of text."""

    text: str


class RefusalPart(Struct, tag_field="type", tag="refusal", frozen=True):
    """A refusal of an assistant."""

    refusal: str


class ImagePart(Struct, tag_field="type", frozen=True, tag="image_url"):
    """An image, in the body or by its address."""


class AudioPart(Struct, tag_field="type", frozen=True, tag="input_audio"):
    """Sound."""


class VideoPart(Struct, tag_field="type", frozen=True, tag="video_url"):
    """A film."""


class FilePart(Struct, tag_field="type", frozen=True, tag="file"):
    """A file."""


Part = TextPart | RefusalPart | ImagePart | AudioPart | VideoPart | FilePart
Content = str | Annotated[list[Part], Meta(min_length=1)]

TEXT_PART_SCHEMA = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"type": "string", "const": "text"}, "text": {"type": "string"}},
}
_CALLED_SCHEMA = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "arguments": {"anyOf": [{"type": "string"}, {"type": "object"}, {"type": "null"}]},
    },
}
_CALLS_SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["id", "function"],
        "properties": {
            "id": {"type": "string", "minLength": 1},
            "type": {"type": "string", "const": "function"},
            "function": _CALLED_SCHEMA,
        },
    },
}
_TAKES_CONTENT = 'a string, or a list of at least one {"type": "text", "text": ...} part'
_CONTENT_SCHEMA = {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1, "items": TEXT_PART_SCHEMA}]}
_CONTENT = served(Content, _TAKES_CONTENT, required=True, schema=_CONTENT_SCHEMA)
_NAME = served(str, "a string")
_ROLE = served(str, "one of " + ", ".join(ROLES), required=True)
_PLAIN: Table = {"role": _ROLE, "content": _CONTENT, "name": _NAME}

BY_ROLE: Mapping[str, Table] = {
    "system": _PLAIN,
    "developer": _PLAIN,
    "user": _PLAIN,
    "assistant": {
        "role": _ROLE,
        "content": served(Content, _TAKES_CONTENT, schema=_CONTENT_SCHEMA),
        "name": _NAME,
        "tool_calls": served(
            list[MessageCall], 'a list of {"id": ..., "type": "function", "function": ...}', schema=_CALLS_SCHEMA
        ),
        "reasoning_content": served(str, "a string"),
        "reasoning": served(str, "a string: another name of reasoning_content, which is used if both are sent"),
        "function_call": later(dict[str, Any], ""),
        "refusal": served(str, "a string: the text of the turn if there is no content"),
        "audio": later(dict[str, Any], ""),
        "annotations": inert(list[Any], "a list"),
    },
    "tool": {
        "role": _ROLE,
        "content": _CONTENT,
        "tool_call_id": served(Annotated[str, Meta(min_length=1)], "the id of the call it answers", required=True),
        "name": _NAME,
    },
    "function": {"role": later(str, ""), "content": _CONTENT, "name": _NAME},
}


def read_turns(messages: Sequence[Any]) -> tuple[tuple[Turn, ...], tuple[str, ...]]:
    """Return the turns, and the names in them without a field (`messages[].name`, each once).

    `messages` are all plain, or all undecoded members.

    Raises ClientError that names the message and the field: 400 for a wrong shape, 422 for media.
    """
    if _are_plain(messages):
        return tuple(Turn(parse_role(plain.role), plain.content, plain.name) for plain in messages), ()
    turns: list[Turn] = []
    unknown: dict[str, None] = {}
    for index, members in enumerate(messages):
        where = f"messages[{index}]."
        turn, names = _read_turn(members, where)
        turns.append(turn)
        unknown.update(dict.fromkeys(f"messages[].{name.removeprefix(where)}" for name in names))
    return tuple(turns), tuple(unknown)


def _are_plain(messages: Sequence[Any]) -> TypeGuard[Sequence[PlainMessage]]:
    """Say whether the list has plain messages; all of its items have the same form."""
    return bool(messages) and isinstance(messages[0], PlainMessage)


def _read_turn(members: Mapping[str, Raw], where: str) -> tuple[Turn, tuple[str, ...]]:
    values = read_fields(members, BY_ROLE[_role(members, where)], where=where)
    given = dict(values.given)
    _take_calls(given)
    refusal = given.pop("refusal", None)
    if refusal is not None:
        given.setdefault("content", refusal)
    if "content" not in given and not given.get("calls") and "reasoning" not in given:
        raise ClientError(f"{where}content is missing; send {_TAKES_CONTENT}", param=where + "content")
    given["role"] = parse_role(given["role"], param=where + "role")
    given["text"] = _join(given.pop("content", ""), where + "content")
    return Turn(**given), values.unknown


def _take_calls(given: dict[str, Any]) -> None:
    """Move calls and reasoning to the names of a turn's fields."""
    calls = given.pop("tool_calls", ())
    if calls:
        given["calls"] = tuple(
            TurnCall(call.id, call.function.name, call_arguments(call.function.arguments)) for call in calls
        )
    reasoning = given.pop("reasoning", None)
    if reasoning is not None or "reasoning_content" in given:
        given["reasoning"] = given.pop("reasoning_content", reasoning)


def call_arguments(arguments: str | dict[str, Any] | None) -> Mapping[str, Any] | str:
    """Return the arguments of an earlier call as an object, or a text that is none unchanged, also one that nests too deep."""
    if not isinstance(arguments, str):
        return arguments or {}
    if not is_json(arguments.strip() or "{}"):
        return arguments
    try:
        decoded = msgspec.json.decode(arguments.strip() or "{}")
    except (msgspec.DecodeError, UnicodeEncodeError):
        return arguments
    return decoded if isinstance(decoded, dict) else arguments


def _role(members: Mapping[str, Raw], where: str) -> str:
    role = read_fields({"role": members["role"]} if "role" in members else {}, _ROLE_ONLY, where=where).given["role"]
    if role not in BY_ROLE:
        raise ClientError(f"{where}role is {role[:32]!r}; send {_ROLE.takes}", param=where + "role")
    return str(role)


_ROLE_ONLY: Table = {"role": _ROLE}


def _join(content: str | list[Part], param: str) -> str:
    return content if isinstance(content, str) else "".join(_text(part, param) for part in content)


def _text(part: Part, param: str) -> str:
    if isinstance(part, TextPart):
        return part.text
    kind = type(part).__struct_config__.tag
    raise Refusal(f"{param} has a part of type {kind!r}, which is not served; send text parts", param=param)
