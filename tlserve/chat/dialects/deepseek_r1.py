"""`deepseek_r1`: reasoning up to `</think>`, which the prompt opens, then content, and calls in tokens of their own.

A call is a kind, a separator, the name, and the arguments in a fenced block. The template joins the arguments of earlier calls
to strings, and needs these calls to have no content.

Source: the chat template of DeepSeek-R1-Distill-Qwen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial

from tlserve.chat.dialect import CallForm, Dialect, Slot, ToolUse, TurnForm
from tlserve.chat.dialects.markup_dialect import MarkupDialect
from tlserve.chat.output.json_regions import NamedRegion
from tlserve.chat.output.markup_reader import THINK, OpenRegion

ALL_BEGIN, ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"  # noqa: RUF001 - the model's own spelling
BEGIN, END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"  # noqa: RUF001 - the model's own spelling
SEPARATOR = "<｜tool▁sep｜>"  # noqa: RUF001 - the model's own spelling
_HEAD = re.compile(rf"\s*function{SEPARATOR}([^\s<>{{]+)\s*(?:```(?:json)?\s*)?")

_CALLS = CallForm(
    before=(ALL_BEGIN,),
    call=(BEGIN, "function", SEPARATOR, Slot.NAME, "\n```json\n", Slot.ARGUMENTS, "\n```", END),
    between=("\n",),
    after=(ALL_END,),
)


def _regions(tools: ToolUse) -> Mapping[str, OpenRegion]:
    return {BEGIN: partial(NamedRegion, BEGIN, END, tools.schemas, _HEAD)}


DEEPSEEK_R1: Dialect = MarkupDialect(
    name="deepseek_r1",
    template_words=(ALL_BEGIN, THINK.end),
    reasoning=THINK,
    calls=_CALLS,
    regions=_regions,
    dropped=(ALL_BEGIN, ALL_END, SEPARATOR, END),
    form=TurnForm(arguments_as_text=True, null_content=True),
)
