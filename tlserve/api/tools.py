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


@attrs.frozen(kw_only=True)
class OfferedFunction:
    """A function that the model can call, and the JSON schema of its arguments.

    `place` is its place in the request, and `schema_name` the name of the schema there. `input_lark` is the grammar of the text
    of its only argument, inside a JSON string.
    """

    name: str
    description: str | None
    parameters: Mapping[str, Any] | None
    place: str
    schema_name: str = "parameters"
    strict: bool = False
    input_lark: str | None = None

    @property
    def schema_place(self) -> str:
        """Return the place of the schema, for errors."""
        return f"{self.place}.{self.schema_name}"

    def shown(self) -> dict[str, Any]:
        """Return the function as chat templates know tools."""
        described = {} if self.description is None else {"description": self.description}
        parameters = {"type": "object"} if self.parameters is None else self.parameters
        return {"type": "function", "function": {"name": self.name, **described, "parameters": parameters}}


class CallMode(enum.Enum):
    """Whether the answer may or must have calls."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@attrs.frozen
class CallChoice:
    """The choice of a request; `name` is the only function that can be called, or None.

    `allowed` are the functions that can be called, None for all: the others are in the prompt all the same.
    """

    mode: CallMode = CallMode.AUTO
    name: str | None = None
    allowed: frozenset[str] | None = None


def asked_tools(
    functions: Sequence[OfferedFunction],
    choice: CallChoice,
    *,
    shown: Iterable[Mapping[str, Any]] | None = None,
    parallel: bool = True,
) -> AskedTools:
    """Return the tools of a request; `shown` go to the prompt instead of the functions as templates know them.

    Raises ClientError for a name that is there twice, and for a choice that cannot be made.
    """
    _refuse_twins(functions)
    _check_choice(functions, choice)
    schemas = {function.name: function.parameters or {} for function in functions}
    if choice.mode is CallMode.NONE:
        return AskedTools(use=ToolUse(schemas=schemas, hidden=True))
    strict = frozenset(function.name for function in functions if function.strict)
    required = choice.mode is CallMode.REQUIRED
    use = ToolUse(
        schemas=schemas,
        parallel=parallel and choice.name is None,
        enforced=_enforced(functions, choice) if strict or required or choice.allowed is not None else None,
        strict=strict,
        required=required,
        named=choice.name is not None,
        inputs={function.name: function.input_lark for function in functions if function.input_lark is not None},
    )
    return AskedTools(
        shown=tuple(function.shown() for function in functions) if shown is None else tuple(shown), use=use
    )


def _refuse_twins(functions: Sequence[OfferedFunction]) -> None:
    names: set[str] = set()
    for function in functions:
        if function.name in names:
            raise ClientError(f"{function.place}.name {function.name!r} is there twice; send it once", param="tools")
        names.add(function.name)


def _check_choice(functions: Sequence[OfferedFunction], choice: CallChoice) -> None:
    named = {choice.name} if choice.name is not None else choice.allowed or ()
    missing = sorted(set(named) - {function.name for function in functions})
    if missing:
        raise ClientError(
            f"tool_choice names {missing[0][:64]!r}, which is not in tools; send one of them", param="tool_choice"
        )
    if choice.mode is CallMode.REQUIRED and not functions:
        raise ClientError(
            "tool_choice asks for a call, but there are no tools; send some, or leave tool_choice out",
            param="tool_choice",
        )


def _enforced(functions: Sequence[OfferedFunction], choice: CallChoice) -> dict[str, PlacedSchema]:
    """Return the enforced schema of each function that can be called."""
    callable_names = choice.allowed if choice.name is None else {choice.name}
    return {
        function.name: PlacedSchema(
            function.schema_place, arguments_schema(function.parameters, function.schema_place, strict=function.strict)
        )
        for function in functions
        if callable_names is None or function.name in callable_names
    }
