"""The tables of every public field: chat, completions, embeddings, tokenize, and the objects inside them.

Owns which field is served, is answered 422, or is accepted without effect, with its type, bounds and words. To serve a field
that was `later`, declare it `served` here and read it in `tlserve.openai.requests`. Does not know what values are for.

Source: the public API reference of chat completions, completions and embeddings; other fields, such as `top_k`, `min_p` and
`ignore_eos`, have vLLM's names.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw

from tlserve.api.fields import Table, inert, later, served
from tlserve.api.inputs import MAX_INPUTS
from tlserve.api.sampler_fields import SAMPLERS
from tlserve.chat.thinking import RESERVED
from tlserve.openai import answer_formats
from tlserve.openai.messages import PlainMessage
from tlserve.openai.other_servers import OTHER_SERVERS
from tlserve.openai.tools import MAX_TOOLS, ToolChoice, tool_choice_schema, tools_schema

Text = Annotated[str, Meta(min_length=1)]
Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=1, le=128)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Logprobs = Annotated[int, Meta(ge=0, le=20)]
AnyObject = dict[str, Any]
Stops = Text | Annotated[list[Text], Meta(max_length=4)]
Inputs = str | list[str | NotNegative | list[NotNegative]]

_TEXT_SCHEMA = {"type": "string", "minLength": 1}
MAX_BIASES = 1024
MAX_STOP_IDS = 1024
MAX_ALLOWED_IDS = 16_384
MAX_BAD_WORDS = 64
MAX_BAD_WORD_CHARACTERS = 40
_BIASES_SCHEMA = {
    "type": "object",
    "maxProperties": MAX_BIASES,
    "propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"},
    "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
}
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


def _is_empty(value: Any) -> bool:
    return not value


_SAMPLING: Table = {
    **OTHER_SERVERS,
    **SAMPLERS,
    "temperature": served(Annotated[float, Meta(ge=0, le=2)], "a number from 0 to 2"),
    "top_p": served(Annotated[float, Meta(gt=0, le=1)], "a number above 0, at most 1"),
    "top_k": served(Annotated[int, Meta(ge=-1, le=2**31 - 1)], "an integer of at least 1, or 0 (or -1) for all"),
    "min_p": served(Annotated[float, Meta(ge=0, le=1)], "a number from 0 to 1"),
    "seed": served(Int64, "a 64-bit integer"),
    "stop": served(Stops, "a string, or at most 4 strings, none of them empty"),
    "ignore_eos": served(bool, "true or false"),
    "max_tokens": served(Positive, "an integer of at least 1"),
    "max_new_tokens": served(Positive, "an integer of at least 1: another name of max_tokens"),
    "n_predict": served(Positive, "an integer of at least 1: another name of max_tokens"),
    "stream": served(bool, "true or false"),
    "stream_options": served(dict[str, Raw], "an object"),
    "n": served(Count, "an integer from 1 to 128"),
    "best_of": served(Count, "the same as n; a larger number is 422"),
    "frequency_penalty": served(Penalty, "a number from -2 to 2"),
    "presence_penalty": served(Penalty, "a number from -2 to 2"),
    "repetition_penalty": served(Annotated[float, Meta(ge=0.01, le=100)], "a number from 0.01 to 100; 1 is off"),
    "repeat_penalty": served(
        Annotated[float, Meta(ge=0, le=100)],
        "a number from 0.01 to 100; 0 and 1 are off; the same as repetition_penalty",
    ),
    "logit_bias": served(
        Annotated[dict[str, Annotated[float, Meta(ge=-100, le=100)]], Meta(max_length=MAX_BIASES)],
        f"an object of at most {MAX_BIASES} token ids in decimal, each with a number from -100 to 100",
        schema=_BIASES_SCHEMA,
    ),
    "min_tokens": served(NotNegative, "an integer from 0 to max_tokens"),
    "stop_token_ids": served(
        Annotated[list[NotNegative], Meta(max_length=MAX_STOP_IDS)], f"a list of at most {MAX_STOP_IDS} token ids"
    ),
    "include_stop_str_in_output": served(bool, "true or false"),
    "prompt_logprobs": served(Logprobs, "an integer from 0 to 20, without stream"),
    "return_token_ids": served(bool, "true or false"),
    "return_tokens_as_token_ids": served(bool, "true or false: tokens of log-probabilities as token_id:N"),
    "skip_special_tokens": served(bool, "true, or false to have control tokens in the text"),
    "allowed_token_ids": served(
        Annotated[list[NotNegative], Meta(min_length=1, max_length=MAX_ALLOWED_IDS)],
        f"a list of 1 to {MAX_ALLOWED_IDS} token ids: the answer has no others",
    ),
    "bad_words": served(
        Annotated[
            list[Annotated[str, Meta(max_length=MAX_BAD_WORD_CHARACTERS, pattern=r"\S")]],
            Meta(max_length=MAX_BAD_WORDS),
        ],
        f"a list of at most {MAX_BAD_WORDS} words of at most {MAX_BAD_WORD_CHARACTERS} characters",
    ),
    "truncate_prompt_tokens": served(
        Annotated[int, Meta(ge=-1)], "how many of the prompt's last tokens are kept; -1 for as many as fit"
    ),
    "cache_salt": served(Annotated[str, Meta(min_length=1, max_length=256)], "a string of 1 to 256 characters"),
    "timeout": served(Annotated[float, Meta(gt=0)], "a number of seconds above 0"),
    "response_format": served(
        answer_formats.ResponseFormat,
        'an object such as {"type": "json_object"}, or with a schema: type json_schema',
        schema=answer_formats.response_format_schema(),
    ),
    "structured_outputs": served(dict[str, Raw], "an object with one of json, json_object, regex, choice, grammar"),
    **answer_formats.OLDER,
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

_MODEL: Table = {"model": served(Text, "the id of a served model; it can be left out if one model is served")}

CHAT: Table = {
    **_MODEL,
    "messages": served(
        list[dict[str, Raw]],
        "a list of at least one message",
        required=True,
        quick=list[PlainMessage],
    ),
    **_SAMPLING,
    "max_completion_tokens": served(Positive, "an integer of at least 1"),
    "logprobs": served(bool, "true or false"),
    "top_logprobs": served(Logprobs, "an integer from 0 to 20, with logprobs true"),
    **_ACCOUNT,
    "tools": served(
        Annotated[list[AnyObject], Meta(max_length=MAX_TOOLS)],
        f"a list of at most {MAX_TOOLS} functions",
        schema=tools_schema(),
    ),
    "tool_choice": served(
        ToolChoice,
        '"none", "auto", "required", or a function by name',
        schema=tool_choice_schema(),
    ),
    "parallel_tool_calls": served(bool, "true or false"),
    "add_special_tokens": later(bool, "false", False),
    "functions": later(list[AnyObject], "[]", when=_is_empty),
    "function_call": later(str | AnyObject, '"none" or "auto"', "none", "auto"),
    "modalities": later(list[str], '["text"]', [], ["text"]),
    "audio": later(AnyObject, ""),
    "prediction": later(AnyObject, ""),
    "web_search_options": later(AnyObject, ""),
    "verbosity": later(str, '"medium"', "medium"),
    "reasoning_effort": served(
        Literal["none", "minimal", "low", "medium", "high", "xhigh"],
        "a level of effort that the model's template knows",
    ),
    "enable_thinking": served(bool, "true or false, if the model's template has a switch"),
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
    "max_tokens": served(NotNegative, "an integer of at least 1, or with echo 0 for the prompt alone"),
    "echo": served(bool, "true or false"),
    "logprobs": served(Logprobs, "an integer from 0 to 20"),
    "suffix": later(str, "", ""),
    "add_special_tokens": later(bool, "true", True),
    **_ACCOUNT,
}

EMBEDDINGS: Table = {
    **_MODEL,
    "input": served(Inputs, _TAKES_INPUTS, required=True, schema=_INPUTS_SCHEMA),
    "encoding_format": served(Literal["float", "base64"], '"float" or "base64"'),
    "dimensions": served(Positive, "an integer of at least 1"),
    "input_type": served(
        Literal["query", "document"], '"query" or "document": the prompt of the model that comes before each text'
    ),
    "prompt_name": served(Text, "the name of one of the model's prompts"),
    "timeout": served(Annotated[float, Meta(gt=0)], "a number of seconds above 0"),
    "user": inert(str, "a string"),
}

_TOKENIZED: Table = {
    **_MODEL,
    "return_token_strs": served(bool, "true to get the spelling of each token in token_strs"),
    "with_pieces": later(bool, "false, or the field return_token_strs", False),
}

TOKENIZE: Table = {
    **_TOKENIZED,
    "text": served(str, "a string"),
    "prompt": served(str, "a string: another name of text, as in vLLM"),
    "content": served(
        str, "a string: as text, but as in llama.cpp: by default without special tokens around it, and spelling them"
    ),
    "messages": served(
        list[dict[str, Raw]], "a chat instead of a text, with its further fields as /v1/chat/completions"
    ),
    "add_special_tokens": served(bool, "true or false"),
    "add_special": served(bool, "true or false: another name of add_special_tokens"),
    "parse_special": served(bool, "true if the text can spell control tokens, as with X-TL-Special-Tokens; or false"),
}

TOKENIZE_CHAT: Table = {
    **CHAT,
    **_TOKENIZED,
    "add_special": inert(bool, "true or false"),
    "parse_special": inert(bool, "true or false"),
}
"""A chat to be tokenised: what is only for a text has no effect, and its type is checked all the same."""

DETOKENIZE: Table = {**_MODEL, "tokens": served(list[NotNegative], "a list of token ids", required=True)}

STREAM_OPTIONS: Table = {
    "include_usage": served(bool, "true or false"),
    "continuous_usage_stats": served(bool, "true or false"),
    "include_obfuscation": inert(bool, "true or false"),
}
