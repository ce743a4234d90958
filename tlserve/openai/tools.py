"""`tools`, `tool_choice` and `parallel_tool_calls` -> the tools of a prompt, and how its answer is read.

Owns the shape of a tool, and the served choices. Does not know what a choice asks of an answer (`tlserve.api.tools` does). An
empty list or null means no tools. Source: the public API reference.
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
from tlserve.errors import ClientError, Refusal

NAME_PATTERN = "^[a-zA-Z0-9_.-]{1,64}$"
CHOICES = ("none", "auto", "required")
MAX_TOOLS = 128


class FunctionSpec(Struct):
    """The name of a function, its description, and the JSON schema of its arguments."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class FunctionTool(Struct, tag_field="type", tag="function"):
    """A function that the model can call."""

    function: FunctionSpec


class CustomTool(Struct, tag_field="type", tag="custom"):
    """A tool that takes any text."""


class NamedFunction(Struct):
    """The function that a choice names."""

    name: str


class NamedChoice(Struct, tag_field="type", tag="function"):
    """A choice of one function."""

    function: NamedFunction


class AllowedTool(Struct, tag_field="type", tag="function"):
    """A function among those that are allowed."""

    function: NamedFunction


class ToolSet(Struct):
    """Some of the tools, and whether one of them must be called."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[AllowedTool], Meta(min_length=1, max_length=MAX_TOOLS)]


class AllowedTools(Struct, tag_field="type", tag="allowed_tools"):
    """A choice among some of the tools."""

    allowed_tools: ToolSet


class CustomChoice(Struct, tag_field="type", tag="custom"):
    """A choice of one custom tool."""


ToolChoice = Literal["none", "auto", "required"] | NamedChoice | AllowedTools | CustomChoice
Tool = FunctionTool | CustomTool


def tools_schema() -> Mapping[str, Any]:
    """Return the JSON schema of `tools`, as far as they are served."""
    members = {
        "name": {"type": "string", "pattern": NAME_PATTERN},
        "description": {"type": ["string", "null"]},
        "parameters": {"type": ["object", "null"]},
        "strict": {"enum": [True, False, None]},
    }
    function = {"type": "object", "required": ["name"], "properties": members}
    properties = {"type": {"type": "string", "const": "function"}, "function": function}
    tool = {"type": "object", "required": ["type", "function"], "properties": properties}
    return {"type": "array", "maxItems": MAX_TOOLS, "items": tool}


def tool_choice_schema() -> Mapping[str, Any]:
    """Return the JSON schema of `tool_choice`, as far as it is served."""
    function = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}
    properties = {"type": {"type": "string", "const": "function"}, "function": function}
    named = {"type": "object", "required": list(properties), "properties": properties}
    tools = {"type": "array", "minItems": 1, "maxItems": MAX_TOOLS, "items": named}
    members = {"mode": {"type": "string", "enum": ["auto", "required"]}, "tools": tools}
    chosen = {"type": "object", "required": list(members), "properties": members}
    some = {"type": {"type": "string", "const": "allowed_tools"}, "allowed_tools": chosen}
    allowed = {"type": "object", "required": list(some), "properties": some}
    return {"anyOf": [{"type": "string", "enum": list(CHOICES)}, named, allowed]}


def read_tools(given: Mapping[str, Any]) -> AskedTools:
    """Return the tools of a body's fields; raises ClientError, or Refusal for a choice that is not served."""
    tools: Sequence[Mapping[str, Any]] = given.get("tools") or ()
    choice = given.get("tool_choice", "auto")
    if not tools and choice == "auto":
        return NO_TOOLS
    functions, unknown = _functions(tools)
    if isinstance(choice, CustomChoice) and functions:
        words = 'tool_choice is not served with this value; send "none", "auto", "required", allowed_tools, or a function by name'
        raise Refusal(words, param="tool_choice")
    parallel = given.get("parallel_tool_calls", True)
    asked = asked_tools(functions, _call_choice(choice), shown=tools, parallel=parallel)
    return attrs.evolve(asked, unknown=unknown)


def _call_choice(choice: Any) -> CallChoice:
    if isinstance(choice, NamedChoice):
        return CallChoice(CallMode.REQUIRED, choice.function.name)
    if isinstance(choice, AllowedTools):
        names = frozenset(tool.function.name for tool in choice.allowed_tools.tools)
        return CallChoice(CallMode(choice.allowed_tools.mode), allowed=names)
    return CallChoice(CallMode(choice)) if isinstance(choice, str) else CallChoice(CallMode.REQUIRED)


def _functions(tools: Sequence[Mapping[str, Any]]) -> tuple[list[OfferedFunction], tuple[str, ...]]:
    """Return the functions, and the paths of the unknown members of all tools, each once."""
    functions: list[OfferedFunction] = []
    unknown: dict[str, None] = {}
    for index, members in enumerate(tools):
        tool = _convert_tool(members, index)
        if isinstance(tool, CustomTool):
            raise Refusal(f"tools[{index}] is a custom tool, which is not served; send functions", param="tools")
        function = tool.function
        functions.append(
            OfferedFunction(
                name=function.name,
                description=function.description,
                parameters=function.parameters,
                place=f"tools[{index}].function",
                strict=bool(function.strict),
            )
        )
        unknown.update(dict.fromkeys(unknown_members(members, tool, "tools[]")))
    return functions, tuple(unknown)


def _convert_tool(members: Mapping[str, Any], index: int) -> Tool:
    try:
        tool: Tool = msgspec.convert(members, Tool)
    except msgspec.ValidationError as fault:
        words, _, path = str(fault).partition(" - at `$")
        place = f"tools[{index}]{path.rstrip('`')}"
        takes = f"a function whose name matches {NAME_PATTERN}"
        raise ClientError(f"{place} is wrong: {words[:1].lower()}{words[1:]}; send {takes}", param="tools") from None
    return tool
