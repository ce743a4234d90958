"""`plain`: the dialect of models that only talk.

Owns that everything is content. Where tools are offered, the prompt tells of them in words of ours (`tlserve.chat.tool_prompt`),
which ask for calls in the way of `hermes`; then that is how the answer is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from tlserve.chat.dialect import (
    FROM_NOTHING,
    USUAL_FORM,
    CallForm,
    Channel,
    ChannelText,
    Dialect,
    DialectReader,
    Opening,
    Piece,
    Tags,
    ToolUse,
    TurnForm,
)
from tlserve.chat.dialects.hermes import HERMES_CALLS, hermes_regions
from tlserve.chat.output.markup_reader import MarkupReader


class PlainReader:
    """Everything is content, at once."""

    held = 0
    ended = False
    markers: frozenset[str] = frozenset()

    def feed(self, text: str) -> Sequence[Piece]:
        """Return `text` as content."""
        return (ChannelText(Channel.CONTENT, text),) if text else ()

    def finish(self) -> Sequence[Piece]:
        """Return nothing: nothing is ever held."""
        return ()


@attrs.frozen
class PlainDialect:
    """The dialect that matches every model."""

    name: str = "plain"
    form: TurnForm = USUAL_FORM
    reasoning: Tags | None = None

    def matches(self, template_source: str, special_tokens: Mapping[str, int]) -> bool:  # noqa: ARG002
        """Match every model."""
        return True

    def call_form(self, special_tokens: Mapping[str, int]) -> CallForm:  # noqa: ARG002
        """Return the form of `hermes`, which the prompt asks for."""
        return HERMES_CALLS

    def open_reader(self, opening: Opening = FROM_NOTHING, tools: ToolUse | None = None) -> DialectReader:
        """Return a reader to which everything is content, besides calls of the tools that are offered."""
        if tools is None:
            return PlainReader()
        return MarkupReader(opening=opening, regions=hermes_regions(tools), tools=tools)


PLAIN: Dialect = PlainDialect()
