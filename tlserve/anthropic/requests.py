"""Bodies of POST /v1/messages and /v1/messages/count_tokens -> the request for the next turn.

Owns the tables of fields, and the rules between fields. Does not know models.

Rules: a last message of the assistant is continued. `thinking` "adaptive" leaves the choice to the model's template, and a budget
for thinking has no effect. Source: the public reference of the Messages API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from tlserve.anthropic import schemas
from tlserve.anthropic.blocks import Message, Text, TextBlock, joined_text
from tlserve.anthropic.tools import AUTO, Tool, ToolUseChoice, read_tools
from tlserve.anthropic.turns import names_without_effect, read_messages
from tlserve.api.chat_request import DEFAULT_RULES, BodyRules, ChatRequest, noted_names
from tlserve.api.fields import Table, inert, later, read_fields, served
from tlserve.api.json_body import parse_object
from tlserve.api.options import GenerationOptions
from tlserve.chat.grammars.formats import AnswerFormat, schema_format
from tlserve.chat.messages import Role, Turn
from tlserve.chat.thinking import Thinking
from tlserve.errors import ClientError, Refusal
from tlserve.text.stop_strings import MAX_STOP_CHARS, MAX_STOPS

Share = Annotated[float, Meta(ge=0, le=1)]
Stop = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]
MAX_TOOLS = 128


class ThinkingChoice(Struct, frozen=True):
    """`thinking`: whether the model thinks before it answers."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Meta(ge=1)] | None = None
    display: str | None = None


class SchemaFormat(Struct, tag_field="type", tag="json_schema", frozen=True):
    """A format of the answer: JSON that a schema allows."""

    schema: dict[str, Any]


class OutputConfig(Struct, frozen=True):
    """`output_config`: how much effort the answer takes, and its format."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: SchemaFormat | None = None


_FORMAT = 'an object {"type": "json_schema", "schema": ...}'
INPUT: Table = {
    "model": served(Text, "the id of a served model; it can be left out if one model is served"),
    "messages": served(
        list[Message], "a list of messages of the user and the assistant", required=True, schema=schemas.MESSAGE_LIST
    ),
    "system": served(str | list[TextBlock], "a string, or a list of blocks of text", schema=schemas.TEXTS),
    "tools": served(
        Annotated[list[Tool], Meta(max_length=MAX_TOOLS)],
        f"a list of at most {MAX_TOOLS} tools, each with a name and an input_schema",
        schema={"type": "array", "maxItems": MAX_TOOLS, "items": schemas.TOOL},
    ),
    "tool_choice": served(
        ToolUseChoice, 'an object with the type "auto", "any", "none", or "tool" and a name', schema=schemas.CHOICE
    ),
    "thinking": served(
        ThinkingChoice, 'an object with the type "enabled", "disabled" or "adaptive"', schema=schemas.THINKING
    ),
    "output_config": served(OutputConfig, "an object with effort or format", schema=schemas.OUTPUT_CONFIG),
    "output_format": served(SchemaFormat, _FORMAT, schema=schemas.FORMAT),
    "cache_control": inert(dict[str, Any], "an object"),
    "speed": later(str, '"standard"', "standard"),
    "diagnostics": later(dict[str, Any], ""),
    "container": later(Any, ""),
    "mcp_servers": later(list[Any], "[]", []),
    "context_management": later(dict[str, Any], "{}", {}),
}
MESSAGES: Table = {
    **INPUT,
    "max_tokens": served(Annotated[int, Meta(ge=1)], "an integer of at least 1", required=True),
    "stop_sequences": served(
        Annotated[list[Stop], Meta(max_length=MAX_STOPS)], f"a list of at most {MAX_STOPS} strings, none of them empty"
    ),
    "stream": served(bool, "true or false"),
    "temperature": served(Share, "a number from 0 to 1"),
    "top_p": served(Annotated[float, Meta(gt=0, le=1)], "a number above 0, at most 1"),
    "top_k": served(Annotated[int, Meta(ge=0, le=2**31 - 1)], "an integer of at least 1, or 0 for all"),
    "metadata": inert(dict[str, Any], "an object"),
    "service_tier": inert(str, "a string"),
    "inference_geo": inert(str, "a string"),
}
_SAMPLING = ("temperature", "top_p", "top_k")


def parse_messages(body: bytes, rules: BodyRules = DEFAULT_RULES) -> ChatRequest:
    """Parse a body of POST /v1/messages; raises ClientError that names the field."""
    return _request(body, MESSAGES, rules)


def parse_count(body: bytes, rules: BodyRules = DEFAULT_RULES) -> ChatRequest:
    """Parse a body of POST /v1/messages/count_tokens; raises ClientError that names the field."""
    return _request(body, INPUT, rules)


def _request(body: bytes, table: Table, rules: BodyRules) -> ChatRequest:
    values = read_fields(parse_object(body, max_depth=rules.max_depth), table)
    given = values.given
    turns = _turns(given)
    thinking = given.get("thinking")
    budget = ("thinking.budget_tokens",) if thinking is not None and thinking.budget_tokens is not None else ()
    return ChatRequest(
        model=given.get("model", ""),
        messages=turns,
        options=_options(given),
        tools=read_tools(given.get("tools", ()), given.get("tool_choice", AUTO)),
        thinking=_thinking(given, thinking),
        continue_final=turns[-1].role is Role.ASSISTANT and not turns[-1].calls,
        strict=rules.strict,
        ignored=noted_names((*values.unknown, *budget, *names_without_effect(given["messages"])), rules),
    )


def _turns(given: Mapping[str, Any]) -> tuple[Turn, ...]:
    turns = read_messages(given["messages"])
    system = joined_text(given.get("system", ""), "system")
    return (Turn(Role.SYSTEM, system), *turns) if system else turns


def _options(given: Mapping[str, Any]) -> GenerationOptions:
    return GenerationOptions(
        sampling={name: given[name] for name in _SAMPLING if name in given},
        max_tokens=given.get("max_tokens"),
        stop=tuple(given.get("stop_sequences", ())),
        stream=given.get("stream", False),
        format=_format(given),
    )


def _format(given: Mapping[str, Any]) -> AnswerFormat | None:
    config = given.get("output_config")
    nested, plain = None if config is None else config.format, given.get("output_format")
    if nested is not None and plain is not None:
        raise ClientError(
            "output_format and output_config.format are one option; send one of them", param="output_format"
        )
    field = "output_format" if nested is None else "output_config.format"
    form = plain if nested is None else nested
    return None if form is None else schema_format(form.schema, f"{field}.schema", field)


def _thinking(given: Mapping[str, Any], thinking: ThinkingChoice | None) -> Thinking:
    config = given.get("output_config")
    if thinking is not None and thinking.type == "between_tools":
        raise Refusal('thinking is "between_tools", which is not served; send another type', param="thinking")
    switch = None if thinking is None or thinking.type == "adaptive" else thinking.type == "enabled"
    effort = None if config is None else config.effort
    return Thinking(enabled=switch, effort=effort, switch_field="thinking", effort_field="output_config.effort")
