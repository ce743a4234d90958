"""The content blocks of a request's messages and of its system text, and their text.

Owns the shape of each block, and which blocks are refused. Does not know turns.

Source: the public reference of the Messages API. `cache_control` is accepted and has no effect: every prompt is cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from tlserve.errors import Refusal

Text = Annotated[str, Meta(min_length=1)]


class MarkedBlock(Struct, tag_field="type", kw_only=True, frozen=True):
    """What blocks have that a client can mark for its cache."""

    cache_control: dict[str, Any] | None = None


class TextBlock(MarkedBlock, tag="text", frozen=True):
    """A block of text."""

    text: str
    citations: list[Any] | None = None


class ThinkingBlock(Struct, tag_field="type", tag="thinking", frozen=True):
    """The thinking of an earlier answer; the signature is what this server sent with it, and is not checked."""

    thinking: str
    signature: str = ""


class RedactedThinkingBlock(Struct, tag_field="type", tag="redacted_thinking", frozen=True):
    """Thinking of another server, in a form that only that server can read."""

    data: str = ""


class ToolUseBlock(MarkedBlock, tag="tool_use", frozen=True):
    """A call in an earlier answer."""

    id: Text
    name: Text
    input: dict[str, Any]
    caller: dict[str, Any] | None = None


class ImageBlock(MarkedBlock, tag="image", frozen=True):
    """An image."""


class DocumentBlock(MarkedBlock, tag="document", frozen=True):
    """A document."""


class SearchResultBlock(MarkedBlock, tag="search_result", frozen=True):
    """A result of a search."""


ResultPart = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock


class ToolResultBlock(MarkedBlock, tag="tool_result", frozen=True):
    """The result of a call; `is_error` has no place in a chat template, so that the text has to say it."""

    tool_use_id: Text
    content: str | list[ResultPart] = ""
    is_error: bool | None = None


Block = (
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
)


class Message(Struct, frozen=True):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Meta(min_length=1)]


def refuse(block: Struct, place: str) -> Refusal:
    """Return the refusal of a block that is not served at this place."""
    kind = type(block).__struct_config__.tag
    return Refusal(f"{place} is a block of type {kind!r}, which is not served here; send text", param=place)


def joined_text(content: str | Sequence[Struct], place: str) -> str:
    """Return the text of blocks of text; raises Refusal for another block."""
    if isinstance(content, str):
        return content
    texts = []
    for index, block in enumerate(content):
        if not isinstance(block, TextBlock):
            raise refuse(block, f"{place}.{index}")
        texts.append(block.text)
    return "".join(texts)
