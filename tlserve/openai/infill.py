"""Bodies and answers of POST /infill, in the form of llama.cpp's server.

Owns the fields, and the shape of an answer and of the pieces of its stream. Options are those of completions; those whose result
this form has no place for are refused. Does not know models and prompts.

Source: `post_infill` of llama.cpp's server, `to_json_non_oaicompat` of its results, and its page.
"""

from __future__ import annotations

from typing import Annotated, Any

import attrs
import msgspec
from msgspec import Meta, Struct

from tlserve.api.answers import Usage
from tlserve.api.chat_request import DEFAULT_RULES, BodyRules, noted_names
from tlserve.api.fields import Table, later, read_fields, served
from tlserve.api.json_body import parse_object
from tlserve.api.options import GenerationOptions
from tlserve.chat.infill import Gap
from tlserve.chat.output.deltas import Delta
from tlserve.generation import Finish
from tlserve.openai.field_tables import COMPLETION
from tlserve.openai.options import read_options

MAX_FILES = 1024
encode = msgspec.json.encode


class ExtraFile(Struct):
    """Another file of the project."""

    text: str
    filename: str = "tmp"


_FILES_SCHEMA = {
    "type": "array",
    "maxItems": MAX_FILES,
    "items": {
        "type": "object",
        "required": ["text"],
        "properties": {"text": {"type": "string"}, "filename": {"type": "string"}},
    },
}

INFILL: Table = {
    **{name: field for name, field in COMPLETION.items() if name not in ("logprobs", "suffix", "add_special_tokens")},
    "input_prefix": served(str, "the text before the gap", required=True),
    "input_suffix": served(str, "the text behind the gap", required=True),
    "input_extra": served(
        Annotated[list[ExtraFile], Meta(max_length=MAX_FILES)],
        f"a list of at most {MAX_FILES} other files, each with its text and, if it has one, its filename",
        schema=_FILES_SCHEMA,
    ),
    "prompt": served(str, "the beginning of what fills the gap"),
    "max_tokens": served(Annotated[int, Meta(ge=1)], "an integer of at least 1"),
    "n": later(int, "1", 1),
    "best_of": later(int, "1", 1),
    "echo": later(bool, "false", False),
    "stream_options": later(dict[str, Any], "{}", {}),
    "prompt_logprobs": later(int, ""),
    "return_token_ids": later(bool, "false", False),
    "truncate_prompt_tokens": later(int, ""),
}


@attrs.frozen(kw_only=True)
class InfillRequest:
    """One body of POST /infill."""

    model: str
    gap: Gap
    options: GenerationOptions
    ignored: tuple[str, ...] = ()


def parse_infill(body: bytes, rules: BodyRules = DEFAULT_RULES) -> InfillRequest:
    """Parse a body of POST /infill; raises ClientError that names the field."""
    values = read_fields(parse_object(body, max_depth=rules.max_depth), INFILL)
    given = values.given
    options, unknown_in_options = read_options(given)
    gap = Gap(
        prefix=given["input_prefix"],
        suffix=given["input_suffix"],
        prompt=given.get("prompt", ""),
        files=tuple((file.text, file.filename) for file in given.get("input_extra", ())),
    )
    ignored = noted_names((*values.unknown, *unknown_in_options), rules)
    return InfillRequest(model=given.get("model", ""), gap=gap, options=options, ignored=ignored)


@attrs.frozen(kw_only=True)
class InfillTimes:
    """When things happened, in milliseconds since the request's arrival: its start, its first token, its end."""

    started_ms: float
    first_ms: float
    ended_ms: float

    def fields(self, usage: Usage) -> dict[str, Any]:
        """Return the counts and the speeds of prompt and answer."""
        read = usage.prompt - usage.cached
        prompt_ms, predicted_ms = self.first_ms - self.started_ms, self.ended_ms - self.first_ms
        return {
            "cache_n": usage.cached,
            **_speed("prompt", read, prompt_ms),
            **_speed("predicted", usage.completion, predicted_ms),
        }


def _speed(name: str, tokens: int, ms: float) -> dict[str, Any]:
    return {
        f"{name}_n": tokens,
        f"{name}_ms": ms,
        f"{name}_per_token_ms": ms / tokens if tokens else 0.0,
        f"{name}_per_second": 1000 * tokens / ms if ms else 0.0,
    }


def piece_fields(text: str, usage: Usage) -> dict[str, Any]:
    """Return a piece of a stream, which is not its end."""
    return {
        "index": 0,
        "content": text,
        "tokens": [],
        "stop": False,
        "tokens_predicted": usage.completion,
        "tokens_evaluated": usage.prompt,
    }


def end_fields(
    model: str, text: str, last: Delta, usage: Usage, times: InfillTimes, *, has_line: bool
) -> dict[str, Any]:
    """Return a whole answer, or with "" as its text the end of a stream. `last`: why it ended; `has_line`: it has a newline."""
    kind = "limit" if last.finish is Finish.LENGTH else "word" if last.stop_string else "eos"
    return {
        **piece_fields(text, usage),
        "stop": True,
        "model": model,
        "has_new_line": has_line,
        "truncated": False,
        "stop_type": kind,
        "stopping_word": last.stop_string,
        "tokens_cached": usage.cached,
        "timings": times.fields(usage),
    }
