"""A dialect as data: the words of its template, the form of its calls, and the markers that its reader looks for.

Covers the families whose answers are reasoning, content and calls with markers. A family with rules of its own has its own class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from tlserve.chat.dialect import FROM_NOTHING, USUAL_FORM, CallForm, DialectReader, Opening, Tags, ToolUse, TurnForm
from tlserve.chat.output.markup_reader import MarkupReader, OpenRegion


@attrs.frozen(kw_only=True)
class MarkupDialect:
    """A dialect that is read by `MarkupReader`.

    It matches a model whose template contains all of `template_words`. `regions` returns the markers of calls for the tools of a
    request, with what opens their regions; `dropped` are further markers around calls.
    """

    name: str
    template_words: tuple[str, ...]
    calls: CallForm
    regions: Callable[[ToolUse], Mapping[str, OpenRegion]]
    dropped: tuple[str, ...] = ()
    form: TurnForm = USUAL_FORM
    reasoning: Tags | None = None

    def matches(self, template_source: str, special_tokens: Mapping[str, int]) -> bool:  # noqa: ARG002
        """Match by the words of the template."""
        return all(word in template_source for word in self.template_words)

    def call_form(self, special_tokens: Mapping[str, int]) -> CallForm:  # noqa: ARG002
        """Return the form of its calls."""
        return self.calls

    def open_reader(self, opening: Opening = FROM_NOTHING, tools: ToolUse | None = None) -> DialectReader:
        """Return a reader for reasoning, content and calls."""
        return MarkupReader(
            reasoning=self.reasoning,
            opening=opening,
            regions={} if tools is None else self.regions(tools),
            dropped=() if tools is None else self.dropped,
            tools=tools,
        )
