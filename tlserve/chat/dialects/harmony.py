"""`harmony`: messages with a channel: reasoning, content, and calls of functions.

Source: "OpenAI harmony response format"; the chat template of gpt-oss.
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
    Slot,
    Tags,
    ToolUse,
    TurnForm,
)
from tlserve.chat.regions.harmony_reader import CHANNEL, MESSAGE, REASONING, START, HarmonyReader

_FINAL = f"{CHANNEL}final{MESSAGE}"
_CONTENT = Tags(_FINAL, "")
_CALLS = CallForm(
    call=(
        f"{CHANNEL}commentary to=functions.",
        Slot.NAME,
        f" <|constrain|>json{MESSAGE}",
        Slot.ARGUMENTS,
        "<|call|>",
    ),
    between=(f"{START}assistant",),
    begin=f"{CHANNEL}commentary to=functions.",
    end="<|call|>",
    texts=(_FINAL,),
)


@attrs.frozen
class HarmonyDialect:
    """The dialect of gpt-oss."""

    name: str = "harmony"
    form: TurnForm = USUAL_FORM
    reasoning: Tags | None = REASONING
    content: Tags | None = _CONTENT

    def matches(self, template_source: str, special_tokens: Mapping[str, int]) -> bool:  # noqa: ARG002
        """Match by the marks of a message in the template."""
        return all(mark in template_source for mark in (CHANNEL, MESSAGE, "functions."))

    def call_form(self, special_tokens: Mapping[str, int]) -> CallForm:  # noqa: ARG002
        """Return the form of its calls."""
        return _CALLS

    def open_reader(self, opening: Opening = FROM_NOTHING, tools: ToolUse | None = None) -> DialectReader:
        """Return a reader for messages."""
        return HarmonyReader(opening, tools)


HARMONY: Dialect = HarmonyDialect()
