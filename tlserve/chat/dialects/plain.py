"""`plain`: the dialect of models without markup: everything is content.

If a request offers tools, the prompt describes them in our own words (`tlserve.chat.tool_prompt`) and asks for calls in the form
of `hermes`. The answer is then read in that form.
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
from tlserve.chat.dialects.json_calls import HERMES, HERMES_CALLS


class PlainReader:
    """Gives all text as content at once."""

    held = 0
    ended = False
    markers: frozenset[str] = frozenset()

    def feed(self, text: str) -> Sequence[Piece]:
        """Return `text` as content."""
        return (ChannelText(Channel.CONTENT, text),) if text else ()

    def finish(self) -> Sequence[Piece]:
        """Return nothing, because nothing is held."""
        return ()


@attrs.frozen
class PlainDialect:
    """The dialect that matches every model."""

    name: str = "plain"
    form: TurnForm = USUAL_FORM
    reasoning: Tags | None = None
    content: Tags | None = None

    def matches(self, template_source: str, special_tokens: Mapping[str, int]) -> bool:  # noqa: ARG002
        """Match every model."""
        return True

    def call_form(self, special_tokens: Mapping[str, int]) -> CallForm:  # noqa: ARG002
        """Return the form of `hermes`, which the prompt asks for."""
        return HERMES_CALLS

    def open_reader(self, opening: Opening = FROM_NOTHING, tools: ToolUse | None = None) -> DialectReader:
        """Return a reader that gives everything as content, except calls where tools are offered."""
        return PlainReader() if tools is None else HERMES.open_reader(opening, tools)


PLAIN: Dialect = PlainDialect()
