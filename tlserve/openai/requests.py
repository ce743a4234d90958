"""Bodies -> typed requests, each parsed once.

Owns the request types of the endpoints, and the rules between fields. The `model` of a request is "" if its body has none. Does
not know models: the endpoints check the limits that depend on one (context, vocabulary, dimensions).

Source: the public API reference of chat completions, completions and embeddings; `/v1/tokenize` is this server's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from tlserve.api.chat_request import DEFAULT_RULES, BodyRules, ChatRequest, noted_names
from tlserve.api.fields import Table, Values, read_fields
from tlserve.api.inputs import EmbeddingsRequest, Input, read_inputs
from tlserve.api.json_body import Members, parse_object
from tlserve.api.options import GenerationOptions
from tlserve.chat.messages import Role, Turn
from tlserve.chat.thinking import Thinking
from tlserve.errors import ClientError
from tlserve.openai import field_tables
from tlserve.openai.messages import read_turns
from tlserve.openai.options import read_options
from tlserve.openai.tools import read_tools

_SOURCES = ("text", "prompt", "content", "messages")


@attrs.frozen(kw_only=True)
class CompletionRequest:
    """One body of POST /v1/completions; each prompt is text or token ids. `echo`: the answers begin with their prompts.

    `only_echo`: they are only their prompts; the options then have a limit of one token.
    """

    model: str
    prompts: tuple[Input, ...]
    echo: bool = False
    only_echo: bool = False
    options: GenerationOptions
    ignored: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class TokenizeRequest:
    """One body of POST /v1/tokenize: a text, or a chat.

    `parse_special`: the text can spell control tokens; None: not given. `token_strs`: the spelling of each token is asked for.
    """

    model: str
    text: str = ""
    chat: ChatRequest | None = None
    add_special_tokens: bool = True
    parse_special: bool | None = None
    token_strs: bool = False
    ignored: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class DetokenizeRequest:
    """One body of POST /v1/detokenize."""

    model: str
    tokens: tuple[int, ...]
    ignored: tuple[str, ...] = ()


def parse_chat(body: bytes, rules: BodyRules = DEFAULT_RULES) -> ChatRequest:
    """Parse a body of POST /v1/chat/completions; raises ClientError that names the field."""
    return _chat_of(_read(body, field_tables.CHAT, rules), rules)


def _chat_of(values: Values, rules: BodyRules) -> ChatRequest:
    if not values.given["messages"]:
        raise ClientError("messages is empty; send at least one message", param="messages")
    turns, unknown_in_turns = read_turns(values.given["messages"])
    options, unknown_in_options = read_options(values.given)
    tools = read_tools(values.given)
    ignored = noted_names((*values.unknown, *unknown_in_options, *tools.unknown, *unknown_in_turns), rules)
    return ChatRequest(
        model=values.given.get("model", ""),
        messages=turns,
        options=options,
        tools=tools,
        thinking=Thinking(
            enabled=values.given.get("enable_thinking"),
            effort=values.given.get("reasoning_effort"),
            variables=values.given.get("chat_template_kwargs", {}),
        ),
        add_generation_prompt=values.given.get("add_generation_prompt", True),
        continue_final=_continues(values.given, turns),
        strict=rules.strict,
        ignored=ignored,
    )


def _continues(given: Mapping[str, Any], turns: tuple[Turn, ...]) -> bool:
    """Say whether the answer continues the last message; raises ClientError if it cannot."""
    if not given.get("continue_final_message"):
        return False
    param = "continue_final_message"
    if turns[-1].role is not Role.ASSISTANT or turns[-1].calls:
        raise ClientError(f"{param} needs an assistant's message without tool_calls at the end", param=param)
    if given.get("add_generation_prompt"):
        raise ClientError(
            f"{param} cannot be combined with add_generation_prompt true; send only one of them", param=param
        )
    return True


def parse_completion(body: bytes, rules: BodyRules = DEFAULT_RULES) -> CompletionRequest:
    """Parse a body of POST /v1/completions; raises ClientError that names the field."""
    values = _read(body, field_tables.COMPLETION, rules)
    options, unknown_in_options = read_options(values.given)
    only_echo = options.max_tokens == 0
    if only_echo and not values.given.get("echo"):
        raise ClientError("max_tokens is 0, which needs echo true; send at least 1", param="max_tokens")
    return CompletionRequest(
        model=values.given.get("model", ""),
        prompts=read_inputs(values.given["prompt"], "prompt"),
        echo=values.given.get("echo", False),
        only_echo=only_echo,
        options=attrs.evolve(options, max_tokens=1, min_tokens=0) if only_echo else options,
        ignored=noted_names((*values.unknown, *unknown_in_options), rules),
    )


def parse_embeddings(body: bytes, rules: BodyRules = DEFAULT_RULES) -> EmbeddingsRequest:
    """Parse a body of POST /v1/embeddings; raises ClientError that names the field."""
    values = _read(body, field_tables.EMBEDDINGS, rules)
    return EmbeddingsRequest(
        model=values.given.get("model", ""),
        inputs=read_inputs(values.given["input"], "input"),
        as_base64=values.given.get("encoding_format") == "base64",
        dimensions=values.given.get("dimensions"),
        input_type=values.given.get("input_type", ""),
        prompt_name=values.given.get("prompt_name", ""),
        timeout_s=values.given.get("timeout"),
        ignored=noted_names(values.unknown, rules),
    )


def parse_tokenize(body: bytes, rules: BodyRules = DEFAULT_RULES) -> TokenizeRequest:
    """Parse a body of POST /v1/tokenize; raises ClientError that names the field."""
    members = parse_object(body, max_depth=rules.max_depth)
    source = _one_source(members)
    if source == "messages":
        values = read_fields(members, field_tables.TOKENIZE_CHAT)
        chat = _chat_of(values, rules)
        return TokenizeRequest(
            model=chat.model,
            chat=chat,
            token_strs=values.given.get("return_token_strs", False),
            ignored=chat.ignored,
        )
    values = read_fields(members, field_tables.TOKENIZE)
    as_llama_cpp = source == "content"
    return TokenizeRequest(
        model=values.given.get("model", ""),
        text=values.given[source],
        add_special_tokens=_adds_special(values.given, default=not as_llama_cpp),
        parse_special=values.given.get("parse_special", True if as_llama_cpp else None),
        token_strs=values.given.get("return_token_strs", False),
        ignored=noted_names(values.unknown, rules),
    )


def _one_source(members: Members) -> str:
    """Return the name of the field with the input of /v1/tokenize; raises ClientError for none or several."""
    given = [name for name in _SOURCES if name in members and bytes(members[name]) != b"null"]
    if not given:
        raise ClientError("text is missing; send text, prompt, content or messages", param="text")
    if len(given) > 1:
        raise ClientError(f"{given[0]} and {given[1]} are two inputs; send one of them", param=given[1])
    return given[0]


def _adds_special(given: Mapping[str, Any], *, default: bool) -> bool:
    named = {name: given[name] for name in ("add_special_tokens", "add_special") if name in given}
    if len(set(named.values())) > 1:
        raise ClientError(
            "add_special and add_special_tokens are two names of one option, but differ; send one of them",
            param="add_special",
        )
    return bool(next(iter(named.values()), default))


def parse_detokenize(body: bytes, rules: BodyRules = DEFAULT_RULES) -> DetokenizeRequest:
    """Parse a body of POST /v1/detokenize; raises ClientError that names the field."""
    values = _read(body, field_tables.DETOKENIZE, rules)
    return DetokenizeRequest(
        model=values.given.get("model", ""),
        tokens=tuple(values.given["tokens"]),
        ignored=noted_names(values.unknown, rules),
    )


def _read(body: bytes, table: Table, rules: BodyRules) -> Values:
    return read_fields(parse_object(body, max_depth=rules.max_depth), table)
