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
    functions = [_function(tool, f"tools.{index}") for index, tool in enumerate(tools)]
    return asked_tools(functions, _call_choice(choice), parallel=not choice.disable_parallel_tool_use)


def _function(tool: Tool, place: str) -> OfferedFunction:
    if tool.type not in (None, CUSTOM):
        shown = str(tool.type)[:64]
        raise Refusal(f"{place} has the type {shown!r}, which is not served; send tools of your own", param=place)
    if tool.input_schema is None:
        raise ClientError(f"{place}.input_schema is missing; send a JSON schema", param=f"{place}.input_schema")
    return OfferedFunction(
        name=tool.name,
        description=tool.description,
        parameters=tool.input_schema,
        place=place,
        schema_name="input_schema",
        strict=bool(tool.strict),
    )


def _call_choice(choice: ToolUseChoice) -> CallChoice:
    if choice.type == "tool":
        if choice.name is None:
            raise ClientError("tool_choice.name is missing; send the name of a tool", param="tool_choice.name")
        return CallChoice(CallMode.REQUIRED, choice.name)
    return CallChoice(CallMode.REQUIRED if choice.type == "any" else CallMode(choice.type))
