"""Bodies of Ollama's API -> typed requests.

Owns the tables of fields, and the rules between fields. A name of a model can end in ":latest", which says nothing here. The
calls of earlier answers have no ids there: they get ids by their order, and a result belongs to the next call of its tool.
Source: Ollama's page of its API.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import attrs
from msgspec import Meta, Raw, Struct

from tlserve.api.chat_request import NO_TOOLS, AskedTools, BodyRules, ChatRequest, noted_names
from tlserve.api.fields import Table, inert, later, read_fields, served
from tlserve.api.inputs import EmbeddingsRequest, Input, read_inputs
from tlserve.api.json_body import parse_object
from tlserve.api.tools import CallChoice, OfferedFunction, asked_tools
from tlserve.chat.grammars.formats import ANY_OBJECT, AnswerFormat, schema_format
from tlserve.chat.messages import Role, Turn, TurnCall
from tlserve.chat.thinking import Thinking
from tlserve.errors import ClientError, Refusal
from tlserve.ollama.keep_alive import KEEP_ALIVE_SCHEMA, read_keep_alive
from tlserve.ollama.options import read_ollama_options

LATEST = ":latest"
MAX_TOOLS = 128


class OllamaFunction(Struct, frozen=True):
    """A function that was called, with its arguments."""

    name: Annotated[str, Meta(min_length=1)]
    arguments: dict[str, Any] = {}
    index: int | None = None


class OllamaCall(Struct, frozen=True):
    """A call in an earlier answer."""

    function: OllamaFunction
    id: str | None = None
    type: str | None = None


class OllamaMessage(Struct, frozen=True):
    """One message of a conversation."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaToolFunction(Struct, frozen=True):
    """The name of a function, its description, and the JSON schema of its arguments."""

    name: Annotated[str, Meta(min_length=1, max_length=128)]
    description: str | None = None
    parameters: dict[str, Any] | None = None


class OllamaTool(Struct, frozen=True):
    """A function that the model can call."""

    function: OllamaToolFunction
    type: Literal["function"] = "function"


MESSAGE_LIST_SCHEMA = {
    "type": "array",
    "items": {
        "type": "object",
        "required": ["role"],
        "properties": {
            "role": {"type": "string", "enum": ["system", "user", "assistant", "tool"]},
            "content": {"type": "string"},
            "thinking": {"type": ["string", "null"]},
            "images": {"anyOf": [{"type": "array", "maxItems": 0}, {"type": "null"}]},
            "tool_name": {"type": ["string", "null"]},
        },
    },
}
_FUNCTION_SCHEMA = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 128},
        "description": {"type": ["string", "null"]},
        "parameters": {"type": ["object", "null"]},
    },
}
TOOL_LIST_SCHEMA = {
    "type": "array",
    "maxItems": MAX_TOOLS,
    "items": {"type": "object", "required": ["function"], "properties": {"function": _FUNCTION_SCHEMA}},
}


_COMMON: Table = {
    "model": served(Annotated[str, Meta(min_length=1)], "the name of a served model"),
    "stream": served(bool, "true, as by default, or false"),
    "options": served(dict[str, Raw], "an object of options"),
    "format": served(
        str | dict[str, Any],
        '"json", or a JSON schema',
        schema={"anyOf": [{"type": "string", "enum": ["", "json"]}, {"type": "object"}]},
    ),
    "think": served(bool | Literal["low", "medium", "high"], 'true, false, "low", "medium" or "high"'),
    "keep_alive": served(
        str | float, 'a duration such as "5m", or seconds; 0: none, negative: without end', schema=KEEP_ALIVE_SCHEMA
    ),
    "logprobs": later(bool, "false", False),
    "top_logprobs": later(int, "0", 0),
    "truncate": later(bool, "false", False),
    "shift": later(bool, "false", False),
    "_debug_render_only": later(bool, "false", False),
}
CHAT: Table = {
    **_COMMON,
    "messages": served(list[OllamaMessage], "a list of messages", schema=MESSAGE_LIST_SCHEMA),
    "tools": served(
        Annotated[list[OllamaTool], Meta(max_length=MAX_TOOLS)],
        f"a list of at most {MAX_TOOLS} functions",
        schema=TOOL_LIST_SCHEMA,
    ),
}
GENERATE: Table = {
    **_COMMON,
    "prompt": served(str, "a string"),
    "system": served(str, "a string"),
    "raw": served(bool, "true, if the prompt is the whole input of the model; or false"),
    "images": later(list[str], "[]", []),
    "suffix": later(str, '""', ""),
    "template": later(str, '""', ""),
    "context": later(list[int], "[]", []),
}
EMBED: Table = {
    "model": _COMMON["model"],
    "input": served(str | list[str], "a string, or a list of strings", required=True),
    "dimensions": served(Annotated[int, Meta(ge=1)], "an integer of at least 1"),
    "truncate": _COMMON["truncate"],
    "keep_alive": _COMMON["keep_alive"],
    "options": inert(dict[str, Any], "an object"),
}
EMBEDDING: Table = {
    **{name: EMBED[name] for name in ("model", "keep_alive", "options")},
    "prompt": served(str, "a string", required=True),
}


SHOW: Table = {
    "model": _COMMON["model"],
    "name": served(Annotated[str, Meta(min_length=1)], "the name of a served model: an older name of the field"),
    "verbose": inert(bool, "true or false"),
}


@attrs.frozen(kw_only=True)
class OllamaRequest(ChatRequest):
    """A chat, or a text to be continued: `raw` is the whole prompt of the model, or None.

    `keep_alive_s`: how long the model stays in memory afterwards; None if the request does not say.
    """

    raw: str | None = None
    keep_alive_s: float | None = None


def parse_ollama_chat(body: bytes, rules: BodyRules) -> OllamaRequest:
    """Parse a body of POST /api/chat; raises ClientError that names the field."""
    return _request(body, CHAT, rules, lambda given: tuple(_turns(given.get("messages", ()))))


def parse_ollama_generate(body: bytes, rules: BodyRules) -> OllamaRequest:
    """Parse a body of POST /api/generate; raises ClientError that names the field."""
    return _request(body, GENERATE, rules, _prompt_turns)


def _request(
    body: bytes, table: Table, rules: BodyRules, turns: Callable[[Mapping[str, Any]], tuple[Turn, ...]]
) -> OllamaRequest:
    values = read_fields(parse_object(body, max_depth=rules.max_depth), table)
    given = values.given
    options, unknown = read_ollama_options(given.get("options", {}))
    tools: Sequence[OllamaTool] = given.get("tools", ())
    messages = turns(given)
    return OllamaRequest(
        model=given.get("model", "").removesuffix(LATEST),
        messages=messages,
        options=attrs.evolve(options, stream=given.get("stream", True), format=_format(given.get("format", ""))),
        tools=_tools(tools) if tools else NO_TOOLS,
        thinking=_thinking(given.get("think")),
        continue_final=bool(messages) and messages[-1].role is Role.ASSISTANT and not messages[-1].calls,
        strict=rules.strict,
        raw=given.get("prompt", "") if given.get("raw") else None,
        keep_alive_s=read_keep_alive(given.get("keep_alive")),
        ignored=noted_names((*values.unknown, *unknown), rules),
    )


def _turns(messages: Sequence[OllamaMessage]) -> Iterator[Turn]:
    numbers = itertools.count()
    waiting: list[TurnCall] = []
    for index, message in enumerate(messages):
        if message.images:
            place = f"messages[{index}].images"
            raise Refusal(f"{place} has images, which are not served; send text", param=place)
        calls = tuple(_call(call, numbers) for call in message.tool_calls or ())
        waiting += calls
        yield Turn(
            Role(message.role),
            message.content,
            name=message.tool_name,
            tool_call_id=_answered(message, waiting) if message.role == "tool" else None,
            reasoning=message.thinking,
            calls=calls,
        )


def _call(call: OllamaCall, numbers: Iterator[int]) -> TurnCall:
    return TurnCall(call.id or f"call_{next(numbers)}", call.function.name, call.function.arguments)


def _answered(message: OllamaMessage, waiting: list[TurnCall]) -> str | None:
    """Return the id of the call that a result answers, and note that it is answered."""
    if message.tool_call_id is not None:
        return message.tool_call_id
    found = next((call for call in waiting if message.tool_name in (None, call.name)), None)
    if found is None:
        return None
    waiting.remove(found)
    return found.id


def _prompt_turns(given: Mapping[str, Any]) -> tuple[Turn, ...]:
    system, prompt = given.get("system", ""), given.get("prompt", "")
    turns = ((Role.SYSTEM, system), (Role.USER, prompt))
    return tuple(Turn(role, text) for role, text in turns if text) if prompt else ()


def _tools(tools: Sequence[OllamaTool]) -> AskedTools:
    functions = [
        OfferedFunction(
            name=tool.function.name,
            description=tool.function.description,
            parameters=tool.function.parameters,
            place=f"tools[{index}].function",
        )
        for index, tool in enumerate(tools)
    ]
    return asked_tools(functions, CallChoice())


def _format(given: str | dict[str, Any]) -> AnswerFormat | None:
    if given == "":
        return None
    if isinstance(given, str) and given != "json":
        raise ClientError(f'format is {given[:40]!r}; send "json", or a JSON schema', param="format")
    return schema_format(ANY_OBJECT if given == "json" else given, "format", "format")


def _thinking(think: bool | str | None) -> Thinking:
    switch, effort = (think, None) if isinstance(think, bool) else (None, think)
    return Thinking(enabled=switch, effort=effort, switch_field="think", effort_field="think")


def parse_ollama_embed(body: bytes, rules: BodyRules) -> EmbeddingsRequest:
    """Parse a body of POST /api/embed; raises ClientError that names the field."""
    return _embeddings(body, EMBED, rules, lambda given: read_inputs(given["input"], "input"))


def parse_ollama_embedding(body: bytes, rules: BodyRules) -> EmbeddingsRequest:
    """Parse a body of POST /api/embeddings, the older form with one text; raises ClientError that names the field."""
    return _embeddings(body, EMBEDDING, rules, lambda given: read_inputs(given["prompt"], "prompt"))


def _embeddings(
    body: bytes, table: Table, rules: BodyRules, inputs: Callable[[Mapping[str, Any]], tuple[Input, ...]]
) -> EmbeddingsRequest:
    values = read_fields(parse_object(body, max_depth=rules.max_depth), table)
    return EmbeddingsRequest(
        model=values.given.get("model", "").removesuffix(LATEST),
        inputs=inputs(values.given),
        dimensions=values.given.get("dimensions"),
        keep_alive_s=read_keep_alive(values.given.get("keep_alive")),
        ignored=noted_names(values.unknown, rules),
    )


@attrs.frozen(kw_only=True)
class ShowRequest:
    """One body of POST /api/show."""

    model: str
    ignored: tuple[str, ...] = ()


def parse_show(body: bytes, rules: BodyRules) -> ShowRequest:
    """Parse a body of POST /api/show; raises ClientError that names the field."""
    values = read_fields(parse_object(body, max_depth=rules.max_depth), SHOW)
    name = values.given.get("model") or values.given.get("name", "")
    return ShowRequest(model=name.removesuffix(LATEST), ignored=noted_names(values.unknown, rules))
