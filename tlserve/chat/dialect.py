"""The seam for model families: what the text of an answer means.

Owns the channels, the protocol of a dialect, and the registry. A dialect reads visible text and says which of it is content,
reasoning or the markup of a tool call. So far there is one, `plain`, to which everything is content.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs


class Channel(enum.Enum):
    """Where a piece of an answer belongs."""

    CONTENT = "content"
    REASONING = "reasoning"
    TOOL_CALL = "tool_call"


@attrs.frozen
class ChannelText:
    """A piece of text in its channel."""

    channel: Channel
    text: str


class DialectReader(Protocol):
    """Reads one answer incrementally; what it gives, joined by channel, does not depend on how the text was cut."""

    @property
    def held(self) -> int:
        """Return the number of characters fed last that are in no piece yet."""

    def feed(self, text: str) -> Sequence[ChannelText]:
        """Return the pieces that `text` settles, in order."""

    def finish(self) -> Sequence[ChannelText]:
        """Return what was held back; what cannot be read as more is content."""


class Dialect(Protocol):
    """How one family of models writes its answers."""

    @property
    def name(self) -> str:
        """Return the name under which settings choose it."""

    def matches(self, template_source: str, special_tokens: Mapping[str, int]) -> bool:
        """Say whether a model with this template and these special tokens speaks it."""

    def open_reader(self, prompt: str = "") -> DialectReader:
        """Return a reader for one answer to `prompt`, the rendered text, which may have opened a channel."""


class PlainReader:
    """Everything is content, at once."""

    held = 0

    def feed(self, text: str) -> Sequence[ChannelText]:
        """Return `text` as content."""
        return (ChannelText(Channel.CONTENT, text),) if text else ()

    def finish(self) -> Sequence[ChannelText]:
        """Return nothing: nothing is ever held."""
        return ()


@attrs.frozen
class PlainDialect:
    """The dialect of models that only talk."""

    name: str = "plain"

    def matches(self, template_source: str, special_tokens: Mapping[str, int]) -> bool:  # noqa: ARG002
        """Match every model."""
        return True

    def open_reader(self, prompt: str = "") -> DialectReader:  # noqa: ARG002
        """Return a reader to which everything is content."""
        return PlainReader()


PLAIN = PlainDialect()

DIALECTS: tuple[Dialect, ...] = (PLAIN,)
"""All dialects, the most particular first; the last one matches every model."""


def dialect_for(template_source: str, special_tokens: Mapping[str, int]) -> Dialect:
    """Return the first dialect that matches the model."""
    return next(dialect for dialect in DIALECTS if dialect.matches(template_source, special_tokens))
