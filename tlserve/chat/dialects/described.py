"""A dialect as data: the words of its template, the tags of its reasoning and its content, and the form of its calls.

One reader runs all of them. A family with rules that no record describes has its own class.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from tlserve.chat.dialect import (
    FROM_NOTHING,
    USUAL_FORM,
    CallForm,
    DialectReader,
    Opening,
    Tags,
    ToolUse,
    TurnForm,
)
from tlserve.chat.output.markup_reader import MarkupReader, OpenRegion
from tlserve.chat.regions.form_regions import habit_regions, regions_of, spellings_of


@attrs.frozen(kw_only=True)
class DescribedDialect:
    """A dialect that is read by `MarkupReader`, and matches a model whose template contains all of `template_words`.

    It also matches a model whose special tokens include all of `tokens`, if it has some.
    `ends_reasoning`: a call and the tag of the content also end the reasoning. `short_begin`: a beginning of the reasoning's tag
    that models also write alone. `dropped`: further marks that are not content. `habits`: further texts that open a call of a
    tool that was offered, because small models leave the marker out.
    """

    name: str
    template_words: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    calls: CallForm
    form: TurnForm = USUAL_FORM
    reasoning: Tags | None = None
    content: Tags | None = None
    ends_reasoning: bool = False
    short_begin: str = ""
    habits: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()

    def matches(self, template_source: str, special_tokens: Mapping[str, int]) -> bool:
        """Match by the words of the template, or by the tokens."""
        if self.template_words and all(word in template_source for word in self.template_words):
            return True
        return bool(self.tokens) and all(token in special_tokens for token in self.tokens)

    def call_form(self, special_tokens: Mapping[str, int]) -> CallForm:  # noqa: ARG002
        """Return the form of its calls."""
        return self.calls

    def open_reader(self, opening: Opening = FROM_NOTHING, tools: ToolUse | None = None) -> DialectReader:
        """Return a reader for reasoning, content and calls."""
        begin, end = ("", "") if self.content is None else (self.content.begin, self.content.end)
        around = (*filter(None, (begin, end)), *self.dropped)
        ends = (begin,) if self.ends_reasoning and begin else ()
        if tools is None:
            return MarkupReader(
                reasoning=self.reasoning,
                short_begin=self.short_begin,
                ends=ends,
                opening=opening,
                regions={},
                dropped=around,
            )
        return MarkupReader(
            reasoning=self.reasoning,
            short_begin=self.short_begin,
            ends=ends,
            opening=opening,
            regions={**habit_regions(self.habits, self.calls, tools), **regions_of(self.calls, tools)},
            in_reasoning=self._in_reasoning(tools) if self.ends_reasoning else {},
            dropped=(*self.calls.dropped, *around),
            inside=spellings_of(self.calls),
            tools=tools,
        )

    def _in_reasoning(self, tools: ToolUse) -> Mapping[str, OpenRegion | None]:
        """Return the markers inside the reasoning: those that mean nothing by themselves open no region."""
        return {**dict.fromkeys(self.calls.dropped), **regions_of(self.calls, tools, offered_only=True)}
