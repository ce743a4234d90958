"""Bodies of POST /v1/responses -> the request for the next turn, as far as it is known without the store.

Owns the table of fields, and the rules between fields. Does not know models and stored responses: `ResponseRequest.chat` makes
the request for the next turn when the earlier items are found.

The fields of sampling that the public API has only for chat are served here as well. Source: the public reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import attrs
from msgspec import Meta, Raw, Struct

from tlserve.api.chat_request import DEFAULT_RULES, BodyRules, ChatRequest, noted_names
from tlserve.api.fields import Table, inert, later, read_fields, served
from tlserve.api.json_body import parse_object
from tlserve.api.options import GenerationOptions
from tlserve.chat.grammars.formats import ANY_OBJECT, AnswerFormat, schema_format
from tlserve.chat.thinking import Thinking
from tlserve.errors import ClientError
from tlserve.openai.field_tables import CHAT
from tlserve.openai.options import read_options
from tlserve.openai.tools import MAX_TOOLS
from tlserve.responses import schemas
from tlserve.responses.items import Item, ItemReader, Text
from tlserve.responses.tools import Choice, ReadTools, read_tools
from tlserve.responses.turns import turns_of

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
INCLUDED = (
    *(LOGPROBS, ENCRYPTED, "file_search_call.results", "web_search_call.results", "web_search_call.action.sources"),
    *("message.input_image.image_url", "computer_call_output.output.image_url", "code_interpreter_call.outputs"),
)
_INCLUDED = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


class PlainText(Struct, tag_field="type", tag="text"):
    """`text.format` for any text."""


class JsonObject(Struct, tag_field="type", tag="json_object"):
    """`text.format` for any JSON object."""


class NamedSchema(Struct, tag_field="type", tag="json_schema"):
    """`text.format` for one schema; it is enforced whether `strict` or not."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class TextConfig(Struct):
    """`text`: the format of the answer."""

    format: PlainText | JsonObject | NamedSchema | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningConfig(Struct):
    """`reasoning`: how much the model thinks; there are no summaries."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None


_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "ignore_eos", "frequency_penalty", "presence_penalty"),
    *("repetition_penalty", "logit_bias", "min_tokens", "stop_token_ids", "cache_salt", "timeout"),
)
_KEPT = ("user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
Pairs = Annotated[dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]

RESPONSES: Table = {
    "model": CHAT["model"],
    "input": served(
        str | list[dict[str, Raw]], "a string, or a list of items", required=True, schema=schemas.INPUT_ITEMS
    ),
    "instructions": served(
        str, "a string: the first turn, of the system; it is not taken over from an earlier response"
    ),
    "previous_response_id": served(Text, "the id of a stored response, whose items come before the input"),
    "stream": served(bool, "true or false"),
    "stream_options": served(dict[str, Raw], "an object", schema={"type": "object"}),
    "store": served(bool, "true, as by default, to keep the response; or false"),
    "background": served(bool, "true to get the response at once, and fetch its answer later; or false"),
    "max_output_tokens": served(Annotated[int, Meta(ge=1)], "an integer of at least 1"),
    "text": served(TextConfig, "an object with a format", schema=schemas.TEXT_CONFIG),
    "reasoning": served(ReasoningConfig, "an object with an effort", schema=schemas.REASONING),
    "tools": served(
        Annotated[list[dict[str, Any]], Meta(max_length=MAX_TOOLS)],
        f"a list of at most {MAX_TOOLS} functions and custom tools",
        schema={"type": "array", "maxItems": MAX_TOOLS, "items": schemas.TOOL},
    ),
    "tool_choice": served(
        Choice, '"none", "auto", "required", a tool by name, or allowed_tools', schema=schemas.TOOL_CHOICE
    ),
    "parallel_tool_calls": served(bool, "true or false"),
    "include": served(list[_INCLUDED], f'a list; "{LOGPROBS}" adds log-probabilities, the others have no effect'),
    "top_logprobs": served(Annotated[int, Meta(ge=0, le=20)], f"an integer from 0 to 20, with {LOGPROBS} included"),
    "truncation": served(
        Literal["auto", "disabled"], '"auto" to leave out the oldest items if the input is too long, or "disabled"'
    ),
    "metadata": served(Pairs, "an object of at most 16 strings"),
    **{name: CHAT[name] for name in _SAMPLING},
    "enable_thinking": CHAT["enable_thinking"],
    "chat_template_kwargs": CHAT["chat_template_kwargs"],
    **{name: served(str, "a string, which the response repeats (without other effect)") for name in _KEPT},
    "max_tool_calls": inert(int, "an integer"),
    "service_tier": inert(str, "a string"),
    "prompt_cache_options": inert(dict[str, Any], "an object"),
    "conversation": later(str | dict[str, Any], ""),
    "prompt": later(dict[str, Any], ""),
    "context_management": later(list[Any], "[]", []),
    "moderation": later(dict[str, Any], ""),
    "image": later(dict[str, Any], ""),
    "access_programs": later(dict[str, Any], ""),
    "background_options": inert(dict[str, Any], "an object"),
}
_COUNTED = (
    *("model", "input", "instructions", "previous_response_id", "text", "reasoning", "tools", "tool_choice"),
    *("parallel_tool_calls", "truncation", "enable_thinking", "chat_template_kwargs", "conversation"),
)
COUNTED: Table = {name: RESPONSES[name] for name in _COUNTED}
_STREAM_OPTIONS: Table = {"include_obfuscation": inert(bool, "true or false")}


@attrs.frozen(kw_only=True)
class ResponseRequest:
    """One body. `items` are those of its input; `shown` are the fields that the response repeats."""

    model: str
    items: tuple[Item, ...]
    options: GenerationOptions
    tools: ReadTools
    thinking: Thinking
    instructions: str = ""
    previous: str = ""
    store: bool | None = None
    background: bool = False
    truncates: bool = False
    shown: Mapping[str, Any] = attrs.field(factory=dict)
    strict: bool = False
    ignored: tuple[str, ...] = ()

    def chat(self, items: Sequence[Item]) -> ChatRequest:
        """Return the request for the turn after `items`: those of earlier responses, and those of the input."""
        turns = turns_of(items, self.instructions)
        if not turns:
            raise ClientError("input is empty; send at least one item", param="input")
        return ChatRequest(
            model=self.model,
            messages=turns,
            options=self.options,
            tools=self.tools.asked,
            thinking=self.thinking,
            strict=self.strict,
            ignored=self.ignored,
            truncates=self.truncates,
            place="input",
        )


def parse_response(body: bytes, rules: BodyRules = DEFAULT_RULES) -> ResponseRequest:
    """Parse a body of POST /v1/responses; raises ClientError that names the field."""
    return _request(body, RESPONSES, rules)


def parse_count(body: bytes, rules: BodyRules = DEFAULT_RULES) -> ResponseRequest:
    """Parse a body of POST /v1/responses/input_tokens; raises ClientError that names the field."""
    return _request(body, COUNTED, rules)


def _request(body: bytes, table: Table, rules: BodyRules) -> ResponseRequest:
    values = read_fields(parse_object(body, max_depth=rules.max_depth), table)
    given = values.given
    reader = ItemReader()
    items = reader.read(given["input"])
    tools = read_tools(given)
    inside = read_fields(given.get("stream_options", {}), _STREAM_OPTIONS, where="stream_options.").unknown
    unknown = (*values.unknown, *inside, *_without_effect(given), *tools.asked.unknown, *reader.unknown)
    _check_together(given)
    return ResponseRequest(
        model=given.get("model", ""),
        items=items,
        options=_options(given),
        tools=tools,
        thinking=_thinking(given),
        instructions=given.get("instructions", ""),
        previous=given.get("previous_response_id", ""),
        store=given.get("store"),
        background=given.get("background", False),
        truncates=given.get("truncation") == "auto",
        shown=_shown(given, tools),
        strict=rules.strict,
        ignored=noted_names(unknown, rules),
    )


def _check_together(given: Mapping[str, Any]) -> None:
    if given.get("background") and given.get("store") is False:
        raise ClientError("background needs store true; leave store out", param="store")
    if given.get("top_logprobs") and LOGPROBS not in given.get("include", ()):
        raise ClientError(f'top_logprobs needs "{LOGPROBS}" in include; send both, or neither', param="top_logprobs")
    if "stream_options" in given and not given.get("stream"):
        raise ClientError("stream_options needs stream true; leave it out", param="stream_options")


def _without_effect(given: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of known members that have no effect here, although the client may count on one."""
    reasoning, text = given.get("reasoning", ReasoningConfig()), given.get("text", TextConfig())
    names = (
        ("reasoning.summary", reasoning.summary is not None),
        ("reasoning.generate_summary", reasoning.generate_summary is not None),
        ("reasoning.context", reasoning.context not in (None, "auto", "all_turns")),
        ("text.verbosity", text.verbosity not in (None, "medium")),
        (f"include.{ENCRYPTED}", ENCRYPTED in given.get("include", ())),
    )
    return tuple(name for name, has_some in names if has_some)


def _options(given: Mapping[str, Any]) -> GenerationOptions:
    plain, _ = read_options({name: given[name] for name in (*_SAMPLING, "stream") if name in given})
    return attrs.evolve(
        plain,
        max_tokens=given.get("max_output_tokens"),
        max_tokens_field="max_output_tokens",
        logprobs=given.get("top_logprobs", 0) if LOGPROBS in given.get("include", ()) else None,
        format=_format(given.get("text", TextConfig()).format),
    )


def _format(form: PlainText | JsonObject | NamedSchema | None) -> AnswerFormat | None:
    if isinstance(form, NamedSchema):
        return schema_format(form.schema, "text.format.schema", "text.format")
    return schema_format(ANY_OBJECT, "text.format", "text.format") if isinstance(form, JsonObject) else None


def _thinking(given: Mapping[str, Any]) -> Thinking:
    return Thinking(
        enabled=given.get("enable_thinking"),
        effort=given.get("reasoning", ReasoningConfig()).effort,
        variables=given.get("chat_template_kwargs", {}),
        effort_field="reasoning.effort",
    )


def _shown(given: Mapping[str, Any], tools: ReadTools) -> dict[str, Any]:
    """Return the fields that the response repeats; those of sampling are known only with the model."""
    form = given.get("text", TextConfig()).format
    reasoning = given.get("reasoning", ReasoningConfig())
    return {
        "background": given.get("background", False),
        "instructions": given.get("instructions"),
        "max_output_tokens": given.get("max_output_tokens"),
        "max_tool_calls": None,
        "metadata": given.get("metadata", {}),
        "parallel_tool_calls": given.get("parallel_tool_calls", True),
        "previous_response_id": given.get("previous_response_id"),
        "reasoning": {"effort": reasoning.effort, "summary": None},
        "service_tier": "default",
        "text": {"format": _shown_format(form)},
        "tool_choice": _shown_choice(given.get("tool_choice", "auto")),
        "tools": tools.shown,
        "top_logprobs": given.get("top_logprobs", 0),
        "truncation": given.get("truncation", "disabled"),
        **{name: given[name] for name in _KEPT if name in given},
    }


def _shown_format(form: PlainText | JsonObject | NamedSchema | None) -> dict[str, Any]:
    if isinstance(form, NamedSchema):
        described = {} if form.description is None else {"description": form.description}
        return {"type": "json_schema", "name": form.name, **described, "schema": form.schema, "strict": True}
    return {"type": "json_object" if isinstance(form, JsonObject) else "text"}


def _shown_choice(choice: Choice) -> Any:
    if isinstance(choice, str):
        return choice
    if choice.type == "allowed_tools":
        tools = [{"type": tool.type, "name": tool.name} for tool in choice.tools or ()]
        return {"type": choice.type, "mode": choice.mode or "auto", "tools": tools}
    return {"type": choice.type, "name": choice.name}
