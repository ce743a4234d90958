"""`hermes`: calls as JSON between `<tool_call>` and `</tool_call>`, in a chat of ChatML or any other.

Owns that form, which Qwen 2.5 and many finetunes write too. Inside the tags stands one object with a name and arguments, or a
list of them. Source: the "Hermes Function Calling" documents of Nous Research; Qwen2.5's chat template.
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
from tlserve.chat.output.json_regions import JsonRegion
from tlserve.chat.output.markup_reader import MarkupReader, OpenRegion

BEGIN, END = "<tool_call>", "</tool_call>"


HERMES_CALLS = CallForm(
    call=(BEGIN, '\n{"name": "', Slot.NAME, '", "arguments": ', Slot.ARGUMENTS, "}\n", END),
    between=("\n",),
)


def hermes_regions(tools: ToolUse | None) -> Mapping[str, OpenRegion]:
    """Return the markers of calls, none where there are no tools."""
    return {} if tools is None else {BEGIN: partial(JsonRegion, BEGIN, END, tools.schemas)}


@attrs.frozen
class HermesDialect:
    """The dialect of templates that speak of `<tool_call>`, and have no reasoning."""

    name: str = "hermes"
    form: TurnForm = USUAL_FORM
    reasoning: Tags | None = None

    def matches(self, template_source: str, special_tokens: Mapping[str, int]) -> bool:  # noqa: ARG002
        """Match by the template."""
        return BEGIN in template_source

    def call_form(self, special_tokens: Mapping[str, int]) -> CallForm:  # noqa: ARG002
        """Return JSON between the tags."""
        return HERMES_CALLS

    def open_reader(self, opening: Opening = FROM_NOTHING, tools: ToolUse | None = None) -> DialectReader:
        """Return a reader for content and calls."""
        return MarkupReader(opening=opening, regions=hermes_regions(tools), tools=tools)


HERMES: Dialect = HermesDialect()
