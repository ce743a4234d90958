"""`qwen3`: reasoning between `<think>` and `</think>` first, then content, and calls as `hermes` has them.

Owns the matching. Source: Qwen3's chat template.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from tlserve.chat.dialect import (
    FROM_NOTHING,
    USUAL_FORM,
    CallForm,
    Dialect,
    DialectReader,
    Opening,
    Tags,
    ToolUse,
    TurnForm,
)
from tlserve.chat.dialects.hermes import BEGIN, HERMES_CALLS, hermes_regions
from tlserve.chat.output.markup_reader import THINK, MarkupReader


@attrs.frozen
class Qwen3Dialect:
    """The dialect of templates that speak of `<think>` and `<tool_call>`."""

    name: str = "qwen3"
    form: TurnForm = USUAL_FORM
    reasoning: Tags | None = THINK

    def matches(self, template_source: str, special_tokens: Mapping[str, int]) -> bool:  # noqa: ARG002
        """Match by the template."""
        return THINK.end in template_source and BEGIN in template_source

    def call_form(self, special_tokens: Mapping[str, int]) -> CallForm:  # noqa: ARG002
        """Return the form of `hermes`."""
        return HERMES_CALLS

    def open_reader(self, opening: Opening = FROM_NOTHING, tools: ToolUse | None = None) -> DialectReader:
        """Return a reader for reasoning, content and calls."""
        return MarkupReader(reasoning=THINK, opening=opening, regions=hermes_regions(tools), tools=tools)


QWEN3: Dialect = Qwen3Dialect()
