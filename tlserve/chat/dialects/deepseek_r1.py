"""`deepseek_r1`: reasoning between `<think>` and `</think>`, which the prompt opens, then content; calls in tokens of their own.

Owns the form of its calls: a kind, a separator, the name, and the arguments in a fenced block. Its template joins the
arguments of earlier calls to strings, and wants no content beside them.

Source: the chat template of DeepSeek-R1-Distill-Qwen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

import attrs

from tlserve.chat.dialect import (
    FROM_NOTHING,
    CallForm,
    Dialect,
    DialectReader,
    Opening,
    Slot,
    Tags,
    ToolUse,
    TurnForm,
)
from tlserve.chat.output.json_regions import NamedRegion
from tlserve.chat.output.markup_reader import THINK, MarkupReader

ALL_BEGIN, ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"  # noqa: RUF001 - the model's own spelling
BEGIN, END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"  # noqa: RUF001 - the model's own spelling
SEPARATOR = "<｜tool▁sep｜>"  # noqa: RUF001 - the model's own spelling
_HEAD = re.compile(rf"\s*function{SEPARATOR}([^\s<>{{]+)\s*(?:```(?:json)?\s*)?")

_FORM = TurnForm(arguments_as_text=True, null_content=True)


_CALLS = CallForm(
    before=(ALL_BEGIN,),
    call=(BEGIN, "function", SEPARATOR, Slot.NAME, "\n```json\n", Slot.ARGUMENTS, "\n```", END),
    between=("\n",),
    after=(ALL_END,),
)


def _name_of(head: str) -> str:
    found = _HEAD.fullmatch(head)
    return found[1] if found else ""


@attrs.frozen
class DeepSeekR1Dialect:
    """The dialect of DeepSeek-R1 and its distillations."""

    name: str = "deepseek_r1"
    form: TurnForm = _FORM
    reasoning: Tags | None = THINK

    def matches(self, template_source: str, special_tokens: Mapping[str, int]) -> bool:  # noqa: ARG002
        """Match by the template."""
        return ALL_BEGIN in template_source and THINK.end in template_source

    def call_form(self, special_tokens: Mapping[str, int]) -> CallForm:  # noqa: ARG002
        """Return a fenced block behind the name."""
        return _CALLS

    def open_reader(self, opening: Opening = FROM_NOTHING, tools: ToolUse | None = None) -> DialectReader:
        """Return a reader for reasoning, content and calls."""
        regions = {} if tools is None else {BEGIN: partial(NamedRegion, BEGIN, END, tools.schemas, _name_of)}
        return MarkupReader(
            reasoning=THINK,
            opening=opening,
            regions=regions,
            dropped=() if tools is None else (ALL_BEGIN, ALL_END, SEPARATOR, END),
            tools=tools,
        )


DEEPSEEK_R1: Dialect = DeepSeekR1Dialect()
