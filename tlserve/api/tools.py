"""The functions and the choice of a request -> how its answer is read, and which part of each schema is enforced.

Owns the rules that all families share. Does not know their bodies, nor dialects.

Rules: "none" hides the tools from the model, and keeps calls out of the answer. "required" and a named function force calls, and
are 400 without such a function. The whole schema of a strict function is enforced, or it is refused with the part that cannot be;
if the calls of another function are forced, as much of its schema as possible is enforced. A named function is called once.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from tlserve.api.chat_request import AskedTools
from tlserve.chat.dialect import PlacedSchema, ToolUse
from tlserve.chat.grammars.tool_parameters import arguments_schema
from tlserve.errors import ClientError


@attrs.frozen
class OfferedFunction:
    """A function that the model can call, the JSON schema of its arguments, and the place of that in the request."""

    name: str
    parameters: Mapping[str, Any] | None
    strict: bool
    place: str


class CallMode(enum.Enum):
    """Whether the answer may or must have calls."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@attrs.frozen
class CallChoice:
    """The choice of a request; `name` is the only function that can be called, or None."""

    mode: CallMode = CallMode.AUTO
    name: str | None = None


def asked_tools(
    functions: Sequence[OfferedFunction],
    shown: Iterable[Mapping[str, Any]],
    choice: CallChoice,
    *,
    parallel: bool = True,
) -> AskedTools:
    """Return the tools of a request; `shown` go to the prompt. Raises ClientError for a choice that cannot be made."""
    _check_choice(functions, choice)
    schemas = {function.name: function.parameters or {} for function in functions}
    if choice.mode is CallMode.NONE:
        return AskedTools(use=ToolUse(schemas=schemas, hidden=True))
    strict = frozenset(function.name for function in functions if function.strict)
    required = choice.mode is CallMode.REQUIRED
    use = ToolUse(
        schemas=schemas,
        parallel=parallel and choice.name is None,
        enforced=_enforced(functions, choice.name) if strict or required else None,
        strict=strict,
        required=required,
        named=choice.name is not None,
    )
    return AskedTools(shown=tuple(shown), use=use)


def _check_choice(functions: Sequence[OfferedFunction], choice: CallChoice) -> None:
    if choice.name is not None and choice.name not in {function.name for function in functions}:
        raise ClientError(
            f"tool_choice names {choice.name[:64]!r}, which is not in tools; send one of them", param="tool_choice"
        )
    if choice.mode is CallMode.REQUIRED and not functions:
        raise ClientError(
            "tool_choice asks for a call, but there are no tools; send some, or leave tool_choice out",
            param="tool_choice",
        )


def _enforced(functions: Sequence[OfferedFunction], named: str | None) -> dict[str, PlacedSchema]:
    """Return the enforced schema of each function that can be called."""
    return {
        function.name: PlacedSchema(
            function.place, arguments_schema(function.parameters, function.place, strict=function.strict)
        )
        for function in functions
        if named in (None, function.name)
    }
