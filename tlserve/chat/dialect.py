"""The interface for model families: how to read the text of an answer, and the form of earlier calls in the family's template.

Owns the channels, the pieces that a reader returns, the form of calls, and the protocols of a dialect and its reader. The
dialects are in `tlserve.chat.dialects`, one module each. Knows nothing of tokens and JSON documents.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs


class Channel(enum.Enum):
    """The part of an answer that a text belongs to."""

    CONTENT = "content"
    REASONING = "reasoning"


@attrs.frozen
class ChannelText:
    """Text in its channel."""

    channel: Channel
    text: str


@attrs.frozen
class CallOpened:
    """The model calls the tool `name`; the pieces up to `CallClosed` belong to this call."""

    name: str


@attrs.frozen
class CallArguments:
    """A part of the JSON text of the open call's arguments."""

    text: str


@attrs.frozen
class CallClosed:
    """The open call is complete: the joined pieces of its arguments are one JSON object."""


Piece = ChannelText | CallOpened | CallArguments | CallClosed


@attrs.frozen
class PlacedSchema:
    """A JSON schema, its place in the request, and the pattern of the blanks in its JSON; None means at most one space."""

    place: str
    schema: Any
    blanks: str | None = None


@attrs.frozen(kw_only=True)
class ToolUse:
    """The tools that a request offers, as a reader needs them: name -> JSON schema of the arguments.

    If `parallel` is false, the answer ends with its first call. `hidden` calls are read and left out, because the request allows
    no calls.

    If `enforced` is None, the model is free in its calls. Else it maps each name that can be called to the enforced part of the
    schema, with its place; tools in `strict` are held to their whole schema. `required`: the answer is only calls. `named`: the
    request chose the tool, so the end of its call is the answer's stop.
    """

    schemas: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    parallel: bool = True
    hidden: bool = False
    enforced: Mapping[str, PlacedSchema] | None = None
    strict: frozenset[str] = frozenset()
    required: bool = False
    named: bool = False


@attrs.frozen
class Opening:
    """The text that an answer continues: the end of the prompt, written by the template, or a message that is continued."""

    template: str = ""
    begun: str | None = None

    def is_inside(self, begin: str, end: str) -> bool:
        """Say whether it leaves the tag `begin` open. A client's text before the answer opens nothing."""
        if self.begun is None:
            return self.template.rstrip().endswith(begin)
        return self.begun.rfind(begin) > self.begun.rfind(end)


FROM_NOTHING = Opening()


class DialectReader(Protocol):
    """Reads one answer piece by piece; the result does not depend on how the text is cut.

    Text that looks like a call but is not one comes back as content. If the call was already opened, it stays open.
    """

    @property
    def held(self) -> int:
        """Return how many of the last characters are not in a piece yet."""

    @property
    def ended(self) -> bool:
        """Say whether the answer is over, because nothing can follow its call."""

    @property
    def markers(self) -> frozenset[str]:
        """Return the spellings that steer this reader; control tokens with these spellings reach it as text."""

    def feed(self, text: str) -> Sequence[Piece]:
        """Return the pieces that `text` completes, in order."""

    def finish(self) -> Sequence[Piece]:
        """Return the pieces that were held."""


@attrs.frozen
class Tags:
    """The tags around the reasoning."""

    begin: str
    end: str


class Slot(enum.Enum):
    """A variable part of a call form."""

    NAME = "name"
    ARGUMENTS = "arguments"


@attrs.frozen(kw_only=True)
class CallForm:
    """How a family writes calls, so that they can be forced; its reader reads the same form.

    Each field is a row of parts: slots, and texts; a text is one token if the vocabulary has it as a special token.
    `before` comes before the first call, `between` comes between two calls, `after` comes after the last. `bare`: calls have no
    marker, and only these characters at the beginning of an answer can open them. `as_tags`: the arguments are tags, not JSON.
    """

    call: tuple[str | Slot, ...]
    before: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    bare: str = ""
    as_tags: bool = False


def _same(call_id: str) -> str:
    return call_id


@attrs.frozen(kw_only=True)
class TurnForm:
    """The form of earlier calls in a family's template.

    `arguments_as_text`: arguments are JSON text, else an object. `null_content`: a turn with only calls has the content none,
    else "". `call_id` changes an id to one that the template accepts.
    """

    arguments_as_text: bool = False
    null_content: bool = False
    call_id: Callable[[str], str] = _same


USUAL_FORM = TurnForm()


class Dialect(Protocol):
    """How one family of models writes its answers."""

    @property
    def name(self) -> str:
        """Return the name under which settings choose it."""

    @property
    def form(self) -> TurnForm:
        """Return the form of earlier calls in its template."""

    @property
    def reasoning(self) -> Tags | None:
        """Return the tags around the reasoning, or None if there is no reasoning."""

    def matches(self, template_source: str, special_tokens: Mapping[str, int]) -> bool:
        """Say whether a model with this template and these special tokens uses this dialect."""

    def call_form(self, special_tokens: Mapping[str, int]) -> CallForm:
        """Return the form of calls of a model with these special tokens."""

    def open_reader(self, opening: Opening = FROM_NOTHING, tools: ToolUse | None = None) -> DialectReader:
        """Return a reader for one answer. `opening` may have opened the reasoning; without `tools` there are no calls."""
