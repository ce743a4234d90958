"""`tools` and `tool_choice` of the Responses API -> the tools of a prompt, and how its answer is read.

Owns the shape of a tool and of a choice. A tool that the provider runs is refused by its type. Source: the public reference.

A function without `strict` is strict if its schema can be enforced completely, as in the public API. A custom tool is a function
with one argument, its input, for the model; a format of the input is enforced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import attrs
import msgspec
from msgspec import Meta, Struct

from tlserve.api.chat_request import NO_TOOLS, AskedTools
from tlserve.api.fields import unknown_members
from tlserve.api.tools import CallChoice, CallMode, OfferedFunction, asked_tools
from tlserve.chat.grammars.tool_parameters import arguments_schema
from tlserve.errors import ClientError, Refusal
from tlserve.openai.tools import NAME_PATTERN
from tlserve.responses.json_text import json_text_lark
from tlserve.responses.turns import INPUT

Name = Annotated[str, Meta(pattern=NAME_PATTERN)]


class ResponseFunction(Struct, tag_field="type", tag="function"):
    """A function that the model can call."""

    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class AnyText(Struct, tag_field="type", tag="text"):
    """The format of an input that can be any text."""


class InputGrammar(Struct, tag_field="type", tag="grammar"):
    """The grammar of an input."""

    syntax: Literal["lark", "regex"]
    definition: Annotated[str, Meta(min_length=1)]


class ResponseCustomTool(Struct, tag_field="type", tag="custom"):
    """A tool that takes a text."""

    name: Name
    description: str | None = None
    format: AnyText | InputGrammar | None = None


class NamedTool(Struct):
    """A tool by its type and its name."""

    type: str
    name: str | None = None


class ToolsChoice(Struct):
    """A choice of one tool, or among some of them."""

    type: str
    name: str | None = None
    mode: Literal["auto", "required"] | None = None
    tools: list[NamedTool] | None = None


Choice = Literal["none", "auto", "required"] | ToolsChoice
Tool = ResponseFunction | ResponseCustomTool
_SERVED = ("function", "custom")


@attrs.frozen(kw_only=True)
class ReadTools:
    """The tools of a request: what is asked of the answer, the names of the custom tools, and how a response shows the tools."""

    asked: AskedTools = NO_TOOLS
    custom: frozenset[str] = frozenset()
    shown: tuple[Mapping[str, Any], ...] = ()


def read_tools(given: Mapping[str, Any]) -> ReadTools:
    """Return the tools of a body's fields; raises ClientError for wrong ones, Refusal for a type that is not served."""
    tools: Sequence[Mapping[str, Any]] = given.get("tools") or ()
    choice: Choice = given.get("tool_choice", "auto")
    if not tools and choice == "auto":
        return ReadTools()
    read = [_convert(members, index) for index, members in enumerate(tools)]
    functions = [_offered(tool, f"tools[{index}]") for index, tool in enumerate(read)]
    asked = asked_tools(functions, _call_choice(choice), parallel=given.get("parallel_tool_calls", True))
    unknown = dict.fromkeys(
        name for members, tool in zip(tools, read, strict=True) for name in unknown_members(members, tool, "tools[]")
    )
    return ReadTools(
        asked=attrs.evolve(asked, unknown=tuple(unknown)),
        custom=frozenset(tool.name for tool in read if isinstance(tool, ResponseCustomTool)),
        shown=tuple(_shown(tool, own.strict) for tool, own in zip(read, functions, strict=True)),
    )


def _convert(members: Mapping[str, Any], index: int) -> Tool:
    kind = members.get("type")
    if isinstance(kind, str) and kind not in _SERVED:
        words = f"tools[{index}] has the type {kind[:64]!r}, which is not served; send functions or custom tools"
        raise Refusal(words, param=f"tools[{index}].type")
    try:
        tool: Tool = msgspec.convert(members, Tool)
    except msgspec.ValidationError as fault:
        words, _, path = str(fault).partition(" - at `$")
        place = f"tools[{index}]{path.rstrip('`')}"
        takes = f"a function or a custom tool whose name matches {NAME_PATTERN}"
        raise ClientError(f"{place} is wrong: {words[:1].lower()}{words[1:]}; send {takes}", param="tools") from None
    return tool


def _offered(tool: Tool, place: str) -> OfferedFunction:
    if isinstance(tool, ResponseCustomTool):
        return _offered_custom(tool, place)
    strict = _can_be_strict(tool.parameters, f"{place}.parameters") if tool.strict is None else tool.strict
    return OfferedFunction(
        name=tool.name, description=tool.description, parameters=tool.parameters, place=place, strict=strict
    )


def _can_be_strict(parameters: Mapping[str, Any] | None, place: str) -> bool:
    try:
        arguments_schema(parameters, place, strict=True)
    except ClientError:
        return False
    return True


def _offered_custom(tool: ResponseCustomTool, place: str) -> OfferedFunction:
    text: dict[str, Any] = {"type": "string"}
    lark = None
    if isinstance(tool.format, InputGrammar):
        if tool.format.syntax == "lark":
            lark = json_text_lark(tool.format.definition, f"{place}.format.definition")
        else:
            text["pattern"] = f"^(?:{tool.format.definition})$"
    return OfferedFunction(
        name=tool.name,
        description=tool.description,
        parameters={"type": "object", "properties": {INPUT: text}, "required": [INPUT], "additionalProperties": False},
        place=place,
        schema_name="format",
        strict=True,
        input_lark=lark,
    )


def _shown(tool: Tool, strict: bool) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(tool)
    if isinstance(tool, ResponseCustomTool):
        return {**shown, "format": shown["format"] or {"type": "text"}}
    return {**shown, "strict": strict}


def _call_choice(choice: Choice) -> CallChoice:
    if isinstance(choice, str):
        return CallChoice(CallMode(choice))
    if choice.type == "allowed_tools":
        allowed = frozenset(_named(tool) for tool in choice.tools or ())
        if not allowed:
            raise ClientError("tool_choice.tools is empty; send the tools that are allowed", param="tool_choice.tools")
        return CallChoice(CallMode(choice.mode or "auto"), allowed=allowed)
    return CallChoice(CallMode.REQUIRED, _named(choice))


def _named(tool: NamedTool | ToolsChoice) -> str:
    if tool.type not in _SERVED:
        words = f"tool_choice has the type {tool.type[:64]!r}, which is not served; choose a function or a custom tool"
        raise Refusal(words, param="tool_choice")
    if tool.name is None:
        raise ClientError("tool_choice.name is missing; send the name of a tool", param="tool_choice.name")
    return tool.name
