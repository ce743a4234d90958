"""`llama3`: an answer that is only a call: JSON with `parameters`, or a list of calls as Python.

There is no marker, except for a `<|python_tag|>` that may come first, or the two marks of Llama 4 around a list. So only tools
that were offered are called; everything else is content. Small models also write text before the object, which then begins a
line, or `<function=name>` before the arguments. Source: the prompt formats of Llama 3.1, 3.2 and 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import attrs

from tlserve.chat.dialect import (
    FROM_NOTHING,
    USUAL_FORM,
    CallForm,
    Dialect,
    DialectReader,
    Opening,
    Slot,
    Tags,
    ToolUse,
    TurnForm,
)
from tlserve.chat.dialects.named_calls import FUNCTIONARY_V3_1
from tlserve.chat.output.markup_reader import MarkupReader
from tlserve.chat.regions.form_regions import regions_of
from tlserve.chat.regions.json_regions import JsonRegion
from tlserve.chat.regions.pythonic_region import PythonicRegion
from tlserve.chat.regions.region import EitherRegion, Region

TAGS = ("<|python_tag|>", "<|python_start|>")
_END = "<|python_end|>"
_HEADER = "<|start_header_id|>"

_CALLS = CallForm(call=('{"name": "', Slot.NAME, '", "parameters": ', Slot.ARGUMENTS, "}"), between=("; ",), bare="{[")


def _choose(tools: ToolUse, begin: str, text: str) -> Region | None:
    """Return the region for the form of `text`, or None while that is open: a list may have either form."""
    inside = text[1:].lstrip()
    if not text or (text[0] == "[" and not inside):
        return None
    if text[0] == "[" and inside[0] != "{":
        return PythonicRegion(begin, tools.schemas, tools.schemas.__contains__)
    return JsonRegion(begin, "", tools.schemas, tools.schemas.__contains__)


def _either(tools: ToolUse, begin: str) -> Region:
    return EitherRegion(begin, partial(_choose, tools, begin))


def _at_line(tools: ToolUse) -> Region:
    return JsonRegion("{", "", tools.schemas, tools.schemas.__contains__, begun="{")


@attrs.frozen
class Llama3Dialect:
    """The dialect of the Llama 3 templates."""

    name: str = "llama3"
    form: TurnForm = USUAL_FORM
    reasoning: Tags | None = None
    content: Tags | None = None

    def matches(self, template_source: str, special_tokens: Mapping[str, int]) -> bool:
        """Match by the header of a turn, in the template or the vocabulary."""
        return _HEADER in template_source and (_HEADER in special_tokens or "ipython" in template_source)

    def call_form(self, special_tokens: Mapping[str, int]) -> CallForm:  # noqa: ARG002
        """Return the form in JSON."""
        return _CALLS

    def open_reader(self, opening: Opening = FROM_NOTHING, tools: ToolUse | None = None) -> DialectReader:
        """Return a reader for content or calls."""
        if tools is None:
            return MarkupReader(opening=opening, regions={})
        return MarkupReader(
            opening=opening,
            regions={
                **{tag: partial(_either, tools, tag) for tag in TAGS},
                **regions_of(FUNCTIONARY_V3_1.calls, tools, offered_only=True),
            },
            at_lines={"{": partial(_at_line, tools)},
            bare=dict.fromkeys(_CALLS.bare, partial(_either, tools, "")),
            dropped=(_END,),
            tools=tools,
        )


LLAMA3: Dialect = Llama3Dialect()
