"""The seam for model families: what the text of an answer means, and what the template of the family wants.

Owns the channels, the pieces that a reader gives, the form of calls, and the protocols of a dialect and its reader. The dialects
themselves are in `tlserve.chat.dialects`, one module each. Refuses to know tokens and JSON documents.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import attrs


class Channel(enum.Enum):
    """Where a piece of text belongs."""

    CONTENT = "content"
    REASONING = "reasoning"


@attrs.frozen
class ChannelText:
    """A piece of text in its channel."""

    channel: Channel
    text: str


@attrs.frozen
class CallOpened:
    """The model calls the tool `name`; the pieces that follow, up to `CallClosed`, are of this call."""

    name: str


@attrs.frozen
class CallArguments:
    """A piece of the JSON text of the open call's arguments."""

    text: str


@attrs.frozen
class CallClosed:
    """The open call is complete: the joined pieces of its arguments are one JSON object."""


Piece = ChannelText | CallOpened | CallArguments | CallClosed


@attrs.frozen
class PlacedSchema:
    """A JSON schema, its place in the request, and the pattern of blanks between its parts; None: at most one space."""

    place: str
    schema: Any
    blanks: str | None = None


@attrs.frozen(kw_only=True)
class ToolUse:
    """The tools that a request offers, as a reader needs them: name -> JSON schema of the arguments.

    `parallel` false: the answer ends with its first call. `hidden`: calls are read, and left out, for none may be made.

    `enforced` None: the model calls as it likes. Else name -> what is enforced of the schema, with its place, and calls are of
    these tools alone; those in `strict` are held to all of it. `required`: the answer is calls and nothing else. `named`: the
    request chose the tool, so that the end of its call is the answer's stop.
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
    """What an answer goes on from: the end of the prompt that the template wrote, or the text of a message that is continued."""

    template: str = ""
    begun: str | None = None

    def is_inside(self, begin: str, end: str) -> bool:
        """Say whether it leaves the tag `begin` open. What a client wrote before the answer opens nothing."""
        if self.begun is None:
            return self.template.rstrip().endswith(begin)
        return self.begun.rfind(begin) > self.begun.rfind(end)


FROM_NOTHING = Opening()


class DialectReader(Protocol):
    """Reads one answer incrementally; what it gives does not depend on how the text was cut.

    Text that looks like a call and is none comes back as content. A call that was opened before that showed stays open.
    """

    @property
    def held(self) -> int:
        """Return the number of characters fed last that are in no piece yet."""

    @property
    def ended(self) -> bool:
        """Say whether the answer is over, because nothing may follow its call."""

    @property
    def markers(self) -> frozenset[str]:
        """Return the spellings that steer this reader: a control token so spelled reaches it as text."""

    def feed(self, text: str) -> Sequence[Piece]:
        """Return the pieces that `text` settles, in order."""

    def finish(self) -> Sequence[Piece]:
        """Return what was held back."""


@attrs.frozen
class Tags:
    """What begins and ends the reasoning."""

    begin: str
    end: str


class Slot(enum.Enum):
    """What a call form leaves open."""

    NAME = "name"
    ARGUMENTS = "arguments"


@attrs.frozen(kw_only=True)
class CallForm:
    """How a family writes calls, so that they can be forced; what its reader takes for calls, too.

    Each is a row of parts: texts, each of which is one token where the vocabulary has that as a special token, and slots.
    `before` stands in front of the first call, `between` two of them, and `after` behind the last. `bare`: calls have no marker,
    and only the characters of `bare` at the very beginning of an answer can open them. `as_tags`: arguments are tags, not JSON.
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
    """How a family's template wants earlier calls: `arguments_as_text` as JSON text, else as an object.

    `null_content`: a turn of calls alone has the content none, else "". `call_id` makes an id one that the template takes.
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
        """Return how its template wants earlier calls."""

    @property
    def reasoning(self) -> Tags | None:
        """Return the tags around the reasoning, None if it has none."""

    def matches(self, template_source: str, special_tokens: Mapping[str, int]) -> bool:
        """Say whether a model with this template and these special tokens speaks it."""

    def call_form(self, special_tokens: Mapping[str, int]) -> CallForm:
        """Return how calls are written by a model with these special tokens."""

    def open_reader(self, opening: Opening = FROM_NOTHING, tools: ToolUse | None = None) -> DialectReader:
        """Return a reader for one answer; `opening` may have begun the reasoning. `tools` None: there are no calls."""
