"""The interface for model families: how to read the text of an answer, and the form of earlier calls in the family's template.

Owns the channels, the pieces that a reader returns, the form of calls, and the protocols of a dialect and its reader. The
dialects are in `tlserve.chat.dialects`, one module each. Knows nothing of tokens and JSON documents.
"""

from __future__ import annotations

import enum
import functools
import re
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
    request chose the tool, so the end of its call is the answer's stop. `inputs`: the grammar in Lark of the text of a tool's
    only argument, inside a JSON string, by the tool's name.
    """

    schemas: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    parallel: bool = True
    hidden: bool = False
    enforced: Mapping[str, PlacedSchema] | None = None
    strict: frozenset[str] = frozenset()
    required: bool = False
    named: bool = False
    inputs: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def ends_by_call(self) -> bool:
        """Say whether the answer ends with its first call."""
        return not (self.parallel or self.hidden)

    def until_end(self, pieces: Sequence[Piece]) -> tuple[Sequence[Piece], bool]:
        """Return the pieces up to the call that ends the answer, and whether that call is among them."""
        closed = next((at for at, piece in enumerate(pieces, 1) if isinstance(piece, CallClosed)), 0)
        return (pieces[:closed], True) if closed and self.ends_by_call else (pieces, False)

    def shown(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """Return the pieces without those of hidden calls."""
        return [piece for piece in pieces if isinstance(piece, ChannelText)] if self.hidden else pieces


@attrs.frozen
class Opening:
    """The text that an answer continues: the end of the prompt, written by the template, or a message that is continued."""

    template: str = ""
    begun: str | None = None

    def is_inside(self, begin: str, end: str) -> bool:
        """Say whether it leaves the tag `begin` open. A client's text before the answer opens nothing."""
        if self.begun is None:
            return self.template.rstrip().endswith(begin.rstrip())
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


_MARK = re.compile(r"<[^<>\s]{1,64}>|\[/?[A-Z_]{2,32}\]|\]<\]minimax\[>\[")


@functools.lru_cache(maxsize=1024)
def marks_in(text: str) -> tuple[str, ...]:
    """Return the parts of a text of markup that may be control tokens."""
    return tuple(dict.fromkeys(_MARK.findall(text)))


class Slot(enum.Enum):
    """A variable part of a call form: the name, the arguments, an id, or the call's number in the answer."""

    NAME = "name"
    ARGUMENTS = "arguments"
    ID = "id"
    NUMBER = "number"


TYPE = "{type}"
"""In the text after a key: the JSON type of the value, a word."""


class Notation(enum.Enum):
    """How arguments are written that are not one JSON object: each between tags, as in Python, or as in Gemma's braces."""

    TAGS = "tags"
    PYTHON = "python"
    BRACES = "braces"


@attrs.frozen(kw_only=True)
class ArgumentMarks:
    """The texts around each argument: `key_begin`, the key, `key_end`, the value, `value_end`; `between` two arguments.

    `json_key_end` takes the place of `key_end` before a value that is not a text, if it differs. `{key}` in `value_end` is the
    key, and `{type}` in `json_key_end` the type. `text_begin` and `text_end` are around a value that is a text. The blanks of
    these texts are optional.
    """

    notation: Notation = Notation.TAGS
    key_begin: str = ""
    key_end: str
    json_key_end: str = ""
    value_end: str = ""
    between: str = ""
    text_begin: str = ""
    text_end: str = ""


@attrs.frozen(kw_only=True)
class CallForm:
    """How a family writes calls: the record from which calls are read and forced.

    `before`, `call`, `between` and `after` are rows of parts, slots and texts: `before` comes before the first call, `between`
    between two calls, `after` after the last. A special token inside a text is that token, not its letters. `begin` is the text
    by which the calls are found, and `end` the text that closes them; both are in the rows. `dropped` are further texts around
    calls that mean nothing by themselves. `bare`: calls have no marker, and only these characters at the beginning of an answer
    can open them. `texts`: an answer without a call begins with one of these. `arguments`: None if they are one JSON object.
    `omitted` is a text before a name that models also leave out.
    """

    call: tuple[str | Slot, ...]
    before: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    begin: str = ""
    end: str = ""
    dropped: tuple[str, ...] = ()
    bare: str = ""
    texts: tuple[str, ...] = ()
    arguments: ArgumentMarks | None = None
    omitted: str = ""

    @property
    def head(self) -> tuple[str | Slot, ...]:
        """Return the parts up to the arguments."""
        parts = self.before + self.call
        return parts[: parts.index(Slot.ARGUMENTS)]

    @property
    def tail(self) -> tuple[str | Slot, ...]:
        """Return the parts of a call that follow its arguments."""
        return self.call[self.call.index(Slot.ARGUMENTS) + 1 :]


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

    @property
    def content(self) -> Tags | None:
        """Return the tags around the content, or None if there are none."""

    def matches(self, template_source: str, special_tokens: Mapping[str, int]) -> bool:
        """Say whether a model with this template and these special tokens uses this dialect."""

    def call_form(self, special_tokens: Mapping[str, int]) -> CallForm:
        """Return the form of calls of a model with these special tokens."""

    def open_reader(self, opening: Opening = FROM_NOTHING, tools: ToolUse | None = None) -> DialectReader:
        """Return a reader for one answer. `opening` may have opened the reasoning; without `tools` there are no calls."""
