"""`tools` and `tool_choice` of the Messages API -> the tools of a prompt, and how its answer is read.

Owns the shape of a tool and of a choice. A tool that the provider runs, or whose schema only the provider knows, is refused by
its type. Source: the public reference of the Messages API.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from tlserve.api.chat_request import NO_TOOLS, AskedTools
from tlserve.api.tools import CallChoice, CallMode, OfferedFunction, asked_tools
from tlserve.errors import ClientError, Refusal

NAME_PATTERN = "^[a-zA-Z0-9_-]{1,128}$"
CUSTOM = "custom"


class Tool(Struct, frozen=True):
    """A tool: its name, its description, and the JSON schema of its input."""

    name: Annotated[str, Meta(pattern=NAME_PATTERN)]
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    cache_control: dict[str, Any] | None = None


class ToolUseChoice(Struct, frozen=True):
    """Whether the answer may or must have calls, and of which tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


AUTO = ToolUseChoice("auto")


def read_tools(tools: Sequence[Tool], choice: ToolUseChoice) -> AskedTools:
    """Return the tools; raises ClientError for wrong ones, Refusal for a type that is not served."""
    if not tools and choice.type == "auto":
        return NO_TOOLS
    names = [tool.name for tool in tools]
    for index, tool in enumerate(tools):
        _check(tool, f"tools.{index}", is_twice=tool.name in names[:index])
    offered = [
        OfferedFunction(tool.name, tool.input_schema, bool(tool.strict), f"tools.{index}.input_schema")
        for index, tool in enumerate(tools)
    ]
    parallel = not choice.disable_parallel_tool_use
    return asked_tools(offered, map(_shown, tools), _call_choice(choice), parallel=parallel)


def _check(tool: Tool, place: str, *, is_twice: bool) -> None:
    if tool.type not in (None, CUSTOM):
        shown = str(tool.type)[:64]
        raise Refusal(f"{place} has the type {shown!r}, which is not served; send tools of your own", param=place)
    if tool.input_schema is None:
        raise ClientError(f"{place}.input_schema is missing; send a JSON schema", param=f"{place}.input_schema")
    if is_twice:
        raise ClientError(f"{place}.name {tool.name!r} is there twice; send it once", param=f"{place}.name")


def _call_choice(choice: ToolUseChoice) -> CallChoice:
    if choice.type == "tool":
        if choice.name is None:
            raise ClientError("tool_choice.name is missing; send the name of a tool", param="tool_choice.name")
        return CallChoice(CallMode.REQUIRED, choice.name)
    return CallChoice(CallMode.REQUIRED if choice.type == "any" else CallMode(choice.type))


def _shown(tool: Tool) -> dict[str, Any]:
    """Return the tool as chat templates know it."""
    described = {} if tool.description is None else {"description": tool.description}
    return {"type": "function", "function": {"name": tool.name, **described, "parameters": tool.input_schema}}
