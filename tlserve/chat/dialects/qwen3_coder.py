"""`qwen3_coder`: calls as tags: `<tool_call>`, `<function=name>`, and `<parameter=key>` around each argument.

Owns the matching. Source: Qwen3-Coder's chat template.
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
from tlserve.chat.dialects.hermes import BEGIN, END
from tlserve.chat.output.markup_reader import THINK, MarkupReader
from tlserve.chat.output.xml_region import XmlRegion

_CALLS = CallForm(
    call=(BEGIN, "\n<function=", Slot.NAME, ">\n", Slot.ARGUMENTS, "</function>\n", END), between=("\n",), as_tags=True
)


@attrs.frozen
class Qwen3CoderDialect:
    """The dialect of templates that speak of `<function=`."""

    name: str = "qwen3_coder"
    form: TurnForm = USUAL_FORM
    reasoning: Tags | None = THINK

    def matches(self, template_source: str, special_tokens: Mapping[str, int]) -> bool:  # noqa: ARG002
        """Match by the template."""
        return "<function=" in template_source and BEGIN in template_source

    def call_form(self, special_tokens: Mapping[str, int]) -> CallForm:  # noqa: ARG002
        """Return a tag around each argument."""
        return _CALLS

    def open_reader(self, opening: Opening = FROM_NOTHING, tools: ToolUse | None = None) -> DialectReader:
        """Return a reader for content and calls, and for reasoning where the model or the prompt begins it."""
        regions = {} if tools is None else {BEGIN: partial(XmlRegion, BEGIN, END, tools.schemas)}
        return MarkupReader(reasoning=THINK, opening=opening, regions=regions, tools=tools)


QWEN3_CODER: Dialect = Qwen3CoderDialect()
