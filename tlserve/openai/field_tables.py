"""The tables of every public field: chat, completions, embeddings, tokenize, and what nests in them.

Owns which field is served, answers 422, or is accepted without effect, with its type, bounds and words. To serve a field
that was `later`, declare it `served` here and read it in `tlserve.openai.requests`. Refuses to know what values are for.

Source: the public API reference of chat completions, completions and embeddings; `top_k`, `min_p`, `ignore_eos` and the
others that it lacks are named as vLLM names them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct

from tlserve.chat.thinking import RESERVED
from tlserve.openai.fields import Table, inert, later, served
from tlserve.openai.inputs import MAX_INPUTS
from tlserve.openai.messages import PlainMessage
from tlserve.openai.tools import MAX_TOOLS, ToolChoice, tools_schema

Text = Annotated[str, Meta(min_length=1)]
Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=1, le=128)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
AnyObject = dict[str, Any]
Stops = Text | Annotated[list[Text], Meta(max_length=4)]
Inputs = str | list[str | NotNegative | list[NotNegative]]

_TEXT_SCHEMA = {"type": "string", "minLength": 1}
_IDS_SCHEMA = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
_INPUTS_SCHEMA = {
    "anyOf": [
        _TEXT_SCHEMA,
        {"type": "array", "minItems": 1, "maxItems": MAX_INPUTS, "items": _TEXT_SCHEMA},
        _IDS_SCHEMA,
        {"type": "array", "minItems": 1, "maxItems": MAX_INPUTS, "items": _IDS_SCHEMA},
    ]
}
_TAKES_INPUTS = f"a string, token ids, or a list of 1 to {MAX_INPUTS} of either, none of them empty"


class TextFormat(Struct, tag_field="type", tag="text"):
    """`response_format` that asks for nothing."""


class JsonObjectFormat(Struct, tag_field="type", tag="json_object"):
    """`response_format` for any JSON object."""


class JsonSchema(Struct):
    """The named schema of a `response_format`."""

    name: str


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema"):
    """`response_format` for one schema."""

    json_schema: JsonSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


def _is_empty(value: Any) -> bool:
    return not value


_SAMPLING: Table = {
    "temperature": served(Annotated[float, Meta(ge=0, le=2)], "a number from 0 to 2"),
    "top_p": served(Annotated[float, Meta(gt=0, le=1)], "a number above 0, at most 1"),
    "top_k": served(Annotated[int, Meta(ge=-1, le=2**31 - 1)], "an integer of at least 1, or 0 (or -1) for all"),
    "min_p": served(Annotated[float, Meta(ge=0, le=1)], "a number from 0 to 1"),
    "seed": served(Int64, "an integer of 64 bits"),
    "stop": served(Stops, "a string, or at most 4 strings, none of them empty"),
    "ignore_eos": served(bool, "true or false"),
    "max_tokens": served(Positive, "an integer of at least 1"),
    "stream": served(bool, "true or false"),
    "stream_options": served(dict[str, Raw], "an object"),
    "n": later(Count, "1", 1),
    "best_of": later(Count, "1", 1),
    "frequency_penalty": later(Penalty, "0", 0),
    "presence_penalty": later(Penalty, "0", 0),
    "repetition_penalty": later(Annotated[float, Meta(gt=0)], "1", 1),
    "repeat_penalty": later(Annotated[float, Meta(gt=0)], "1", 1),
    "logit_bias": later(dict[str, Annotated[float, Meta(ge=-100, le=100)]], "{}", when=_is_empty),
    "min_tokens": later(NotNegative, "0", 0),
    "stop_token_ids": later(list[int], "[]", when=_is_empty),
    "include_stop_str_in_output": later(bool, "false", False),
    "prompt_logprobs": later(NotNegative, ""),
    "return_token_ids": later(bool, "false", False),
    "cache_salt": later(str, "", ""),
    "timeout": later(Annotated[float, Meta(gt=0)], ""),
    "structured_outputs": later(AnyObject, "{}", when=_is_empty),
    "regex": later(str, "", ""),
    "choice": later(list[str], "[]", when=_is_empty),
    "grammar": later(str, "", ""),
    "echo": later(bool, "false", False),
    "use_beam_search": later(bool, "false", False),
}

_ACCOUNT: Table = {
    "user": inert(str, "a string"),
    "metadata": inert(AnyObject, "an object"),
    "store": inert(bool, "true or false"),
    "service_tier": inert(str, "a string"),
    "safety_identifier": inert(str, "a string"),
    "prompt_cache_key": inert(str, "a string"),
    "prompt_cache_retention": inert(str, "a string"),
}

_MODEL: Table = {"model": served(Text, "the id of a served model", required=True)}

CHAT: Table = {
    **_MODEL,
    "messages": served(
        Annotated[list[dict[str, Raw]], Meta(min_length=1)],
        "a list of at least one message",
        required=True,
        quick=Annotated[list[PlainMessage], Meta(min_length=1)],
    ),
    **_SAMPLING,
    "max_completion_tokens": served(Positive, "an integer of at least 1"),
    "logprobs": served(bool, "true or false"),
    "top_logprobs": served(Annotated[int, Meta(ge=0, le=20)], "an integer from 0 to 20, with logprobs true"),
    **_ACCOUNT,
    "tools": served(
        Annotated[list[AnyObject], Meta(max_length=MAX_TOOLS)],
        f"a list of at most {MAX_TOOLS} functions",
        schema=tools_schema(),
    ),
    "tool_choice": served(
        ToolChoice,
        '"none" or "auto"',
        schema={"enum": ["none", "auto"]},
    ),
    "parallel_tool_calls": served(bool, "true or false"),
    "functions": later(list[AnyObject], "[]", when=_is_empty),
    "function_call": later(str | AnyObject, '"none" or "auto"', "none", "auto"),
    "response_format": later(
        ResponseFormat,
        'an object such as {"type": "text"}',
        when=lambda value: isinstance(value, TextFormat),
        schema={"type": "object", "required": ["type"], "properties": {"type": {"type": "string", "const": "text"}}},
    ),
    "modalities": later(list[str], '["text"]', [], ["text"]),
    "audio": later(AnyObject, ""),
    "prediction": later(AnyObject, ""),
    "web_search_options": later(AnyObject, ""),
    "verbosity": later(str, '"medium"', "medium"),
    "reasoning_effort": served(
        Literal["none", "minimal", "low", "medium", "high", "xhigh"],
        "a level of effort that the model's template knows",
    ),
    "enable_thinking": served(bool, "true or false, as far as the model's template has a switch"),
    "chat_template_kwargs": served(
        AnyObject,
        "an object of variables for the model's template",
        schema={"type": "object", "propertyNames": {"not": {"enum": sorted(RESERVED)}}},
    ),
    "add_generation_prompt": served(bool, "true or false"),
    "continue_final_message": served(bool, "true, if the last message is the assistant's, or false"),
}

COMPLETION: Table = {
    **_MODEL,
    "prompt": served(Inputs, _TAKES_INPUTS, required=True, schema=_INPUTS_SCHEMA),
    **_SAMPLING,
    "echo": served(bool, "true or false"),
    "logprobs": later(Annotated[int, Meta(ge=0, le=20)], ""),
    "suffix": later(str, "", ""),
    **_ACCOUNT,
}

EMBEDDINGS: Table = {
    **_MODEL,
    "input": served(Inputs, _TAKES_INPUTS, required=True, schema=_INPUTS_SCHEMA),
    "encoding_format": served(Literal["float", "base64"], '"float" or "base64"'),
    "dimensions": served(Positive, "an integer of at least 1"),
    "user": inert(str, "a string"),
}

TOKENIZE: Table = {
    **_MODEL,
    "text": served(str, "a string", required=True),
    "add_special_tokens": served(bool, "true or false"),
}

DETOKENIZE: Table = {**_MODEL, "tokens": served(list[NotNegative], "a list of token ids", required=True)}

STREAM_OPTIONS: Table = {
    "include_usage": served(bool, "true or false"),
    "continuous_usage_stats": later(bool, "false", False),
    "include_obfuscation": inert(bool, "true or false"),
}
