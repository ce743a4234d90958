"""`smollm3`: reasoning as `qwen3` has it, then content, and calls as `hermes` has them.

Owns the matching: the template knows `/no_think`. Its tools go under the name `xml_tools`, if it has it (see
`tlserve.chat.templates.template`). Source: SmolLM3's chat template and model card.
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
from tlserve.chat.dialects.hermes import HERMES_CALLS, hermes_regions
from tlserve.chat.output.markup_reader import THINK, MarkupReader


@attrs.frozen
class SmolLM3Dialect:
    """The dialect of SmolLM3."""

    name: str = "smollm3"
    form: TurnForm = USUAL_FORM
    reasoning: Tags | None = THINK

    def matches(self, template_source: str, special_tokens: Mapping[str, int]) -> bool:  # noqa: ARG002
        """Match by the template."""
        return THINK.end in template_source and "/no_think" in template_source

    def call_form(self, special_tokens: Mapping[str, int]) -> CallForm:  # noqa: ARG002
        """Return the form of `hermes`."""
        return HERMES_CALLS

    def open_reader(self, opening: Opening = FROM_NOTHING, tools: ToolUse | None = None) -> DialectReader:
        """Return a reader for reasoning, content and calls."""
        return MarkupReader(reasoning=THINK, opening=opening, regions=hermes_regions(tools), tools=tools)


SMOLLM3: Dialect = SmolLM3Dialect()
