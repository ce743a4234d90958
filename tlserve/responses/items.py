"""The items of `input` -> items in their one full form, in which they are stored, listed and turned into a conversation.

Owns the members of each kind of item, and which kinds are refused. Does not know turns (`tlserve.responses.turns`).

Source: the public reference of the Responses API. A text is an item of the user. What only another server can read (encrypted
reasoning) and what no prompt has a place for (phases, annotations) is accepted without effect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, Raw

from tlserve.api.fields import Table, inert, later, read_fields, served
from tlserve.errors import ClientError, Refusal

Item = dict[str, Any]
Text = Annotated[str, Meta(min_length=1)]

ROLES = ("user", "assistant", "system", "developer")
_TEXTS = ("input_text", "output_text", "text", "refusal")
_TAKES_CONTENT = 'a string, or a list of parts such as {"type": "input_text", "text": ...}'
_ANY_LIST = inert(list[Any], "a list")
_COMMON: Table = {
    "type": served(Text, "the kind of the item", required=True),
    "id": served(Text, "the id of the item"),
    "status": inert(str, "a string"),
}
_CALL: Table = {
    **_COMMON,
    "call_id": served(Text, "the id of the call", required=True),
    "name": served(Text, "the name of the tool", required=True),
    "namespace": later(str, ""),
    "async": inert(bool, "true or false"),
    "caller": inert(dict[str, Any], "an object"),
    "created_by": inert(str, "a string"),
}
_OUTPUT: Table = {
    **_COMMON,
    "call_id": served(Text, "the id of the call", required=True),
    "output": served(str | list[dict[str, Raw]], _TAKES_CONTENT, required=True),
    "name": inert(str, "a string"),
    "namespace": inert(str, "a string"),
    "caller": inert(dict[str, Any], "an object"),
    "created_by": inert(str, "a string"),
}

BY_TYPE: Mapping[str, Table] = {
    "message": {
        **_COMMON,
        "type": served(Text, '"message"; it can be left out'),
        "role": served(str, "one of " + ", ".join(ROLES), required=True),
        "content": served(str | list[dict[str, Raw]], _TAKES_CONTENT, required=True),
        "phase": inert(str, "a string"),
    },
    "function_call": {**_CALL, "arguments": served(str, "the text of a JSON object", required=True)},
    "function_call_output": _OUTPUT,
    "custom_tool_call": {**_CALL, "input": served(str, "a string", required=True)},
    "custom_tool_call_output": _OUTPUT,
    "reasoning": {
        **_COMMON,
        "summary": served(list[dict[str, Raw]], "a list of summary_text parts, without effect"),
        "content": served(list[dict[str, Raw]], 'a list of {"type": "reasoning_text", "text": ...}'),
        "encrypted_content": inert(str, "a string"),
    },
    "item_reference": {**_COMMON, "id": served(Text, "the id of an item of a stored response", required=True)},
}
_PART: Table = {
    "type": served(Text, "the kind of the part", required=True),
    "text": served(str, "a string"),
    "refusal": served(str, "a string"),
    "annotations": _ANY_LIST,
    "logprobs": _ANY_LIST,
    "prompt_cache_breakpoint": inert(dict[str, Any], "an object"),
}
_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}


def item_id(kind: str, response: str, place: int | str) -> str:
    """Return the id of an item; the id of its response is inside, so that a reference finds it."""
    return f"{_PREFIXES[kind]}_{response.removeprefix(PREFIX)}_{place}"


PREFIX = "resp_"


def response_of(item: str) -> str:
    """Return the id of the response that an item's id names, "" if it names none."""
    parts = item.split("_")
    return PREFIX + parts[1] if len(parts) == 3 else ""


class ItemReader:
    """Reads the items of one body; `unknown` has the names of members without a field, each once."""

    def __init__(self) -> None:
        self.unknown: dict[str, None] = {}

    def read(self, given: str | Sequence[Mapping[str, Raw]]) -> tuple[Item, ...]:
        """Return the items, without ids where the client gave none; raises ClientError that names the item and the member."""
        if isinstance(given, str):
            return (message_item("user", given),)
        return tuple(self._item(members, f"input[{index}].") for index, members in enumerate(given))

    def _item(self, members: Mapping[str, Raw], where: str) -> Item:
        kind = _kind(members, where)
        if kind not in BY_TYPE:
            raise Refusal(
                f"{where}type is {kind[:64]!r}, which is not served; leave the item out", param=where + "type"
            )
        values = read_fields(members, BY_TYPE[kind], where=where)
        self._note(values.unknown, where, "input[].")
        own = {"id": values.given["id"]} if "id" in values.given else {}
        return {**_MAKERS[kind](self, values.given, where), **own}

    def _note(self, names: Sequence[str], where: str, shown: str) -> None:
        self.unknown.update(dict.fromkeys(shown + name.removeprefix(where) for name in names))

    def text(self, content: str | Sequence[Mapping[str, Raw]], place: str, kinds: Sequence[str] = _TEXTS) -> str:
        """Return the joined text of parts; raises Refusal for a part that is not text."""
        if isinstance(content, str):
            return content
        return "".join(self._part(members, f"{place}[{index}].", kinds) for index, members in enumerate(content))

    def _part(self, members: Mapping[str, Raw], where: str, kinds: Sequence[str]) -> str:
        kind = _kind(members, where, required=True)
        if kind not in kinds:
            words = f"{where}type is {kind[:64]!r}, which is not served here; send text"
            raise Refusal(words, param=where + "type")
        values = read_fields(members, _PART, where=where)
        self._note(values.unknown, where, "input[].content[].")
        name = "refusal" if kind == "refusal" else "text"
        if name not in values.given:
            raise ClientError(f"{where}{name} is missing; send a string", param=where + name)
        return str(values.given[name])


def _kind(members: Mapping[str, Raw], where: str, *, required: bool = False) -> str:
    if "type" not in members and not required:
        return "message"
    table = {"type": served(Text, "a string", required=True)}
    own = {"type": members["type"]} if "type" in members else {}
    return str(read_fields(own, table, where=where).given["type"])


def message_item(role: str, text: str) -> Item:
    """Return a message of text."""
    if role == "assistant":
        content: Item = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    else:
        content = {"type": "input_text", "text": text}
    return {"type": "message", "role": role, "status": "completed", "content": [content]}


def _message(reader: ItemReader, given: Mapping[str, Any], where: str) -> Item:
    role = given["role"]
    if role not in ROLES:
        raise ClientError(f"{where}role is {role[:32]!r}; send one of {', '.join(ROLES)}", param=where + "role")
    return message_item(role, reader.text(given["content"], where + "content"))


def _call(_reader: ItemReader, given: Mapping[str, Any], _where: str) -> Item:
    text = "arguments" if given["type"] == "function_call" else "input"
    return {**{name: given[name] for name in ("type", "call_id", "name", text)}, "status": "completed"}


def _output(reader: ItemReader, given: Mapping[str, Any], where: str) -> Item:
    text = reader.text(given["output"], where + "output")
    return {"type": given["type"], "call_id": given["call_id"], "output": text, "status": "completed"}


def _reasoning(reader: ItemReader, given: Mapping[str, Any], where: str) -> Item:
    summary = reader.text(given.get("summary", ()), where + "summary", ("summary_text",))
    text = reader.text(given.get("content", ()), where + "content", ("reasoning_text", "text"))
    return {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": summary}] if summary else [],
        "content": [{"type": "reasoning_text", "text": text}] if text else [],
        "status": "completed",
    }


def _reference(_reader: ItemReader, _given: Mapping[str, Any], _where: str) -> Item:
    return {"type": "item_reference"}


_MAKERS: Mapping[str, Callable[[ItemReader, Mapping[str, Any], str], Item]] = {
    "message": _message,
    "function_call": _call,
    "function_call_output": _output,
    "custom_tool_call": _call,
    "custom_tool_call_output": _output,
    "reasoning": _reasoning,
    "item_reference": _reference,
}


def with_ids(items: Sequence[Item], response: str) -> tuple[Item, ...]:
    """Return the items, each with an id."""
    return tuple({"id": item_id(item["type"], response, f"i{place}"), **item} for place, item in enumerate(items))
