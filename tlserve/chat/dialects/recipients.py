"""Families whose messages name their recipient: `functionary_v3_2` and `muse_glimmer`.

Source: the chat templates of functionary-medium-v3.2 and Muse Glimmer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import attrs

from tlserve.chat.dialect import (
    FROM_NOTHING,
    USUAL_FORM,
    ArgumentMarks,
    CallForm,
    Channel,
    Dialect,
    DialectReader,
    Opening,
    Slot,
    Tags,
    ToolUse,
    TurnForm,
)
from tlserve.chat.regions.json_regions import NamedRegion
from tlserve.chat.regions.recipient_reader import MessageForm, RecipientReader
from tlserve.chat.regions.region import Region
from tlserve.chat.regions.tag_region import TagRegion


@attrs.frozen(kw_only=True)
class RecipientDialect:
    """A dialect of a template that contains all of `template_words`; `open_call` opens the region of a call."""

    name: str
    template_words: tuple[str, ...]
    messages: MessageForm
    calls: CallForm
    open_call: Callable[[ToolUse], Region]
    form: TurnForm = USUAL_FORM
    reasoning: Tags | None = None
    content: Tags | None = None

    def matches(self, template_source: str, special_tokens: Mapping[str, int]) -> bool:  # noqa: ARG002
        """Match by the words of the template."""
        return all(word in template_source for word in self.template_words)

    def call_form(self, special_tokens: Mapping[str, int]) -> CallForm:  # noqa: ARG002
        """Return the form of its calls."""
        return self.calls

    def open_reader(self, opening: Opening = FROM_NOTHING, tools: ToolUse | None = None) -> DialectReader:
        """Return a reader for messages."""
        return RecipientReader(self.messages, opening, tools, self.open_call, self.reasoning)


_FUNCTIONARY_HEAD = re.compile(r"\A([^\s{]{1,256}+)\n\s*+")


def _named_call(tools: ToolUse) -> Region:
    return NamedRegion("", "", tools.schemas, _FUNCTIONARY_HEAD)


FUNCTIONARY_V3_2: Dialect = RecipientDialect(
    name="functionary_v3_2",
    template_words=(">>>${recipient}",),
    messages=MessageForm(start=">>>", body="\n", channels={"all": Channel.CONTENT}),
    calls=CallForm(call=(Slot.NAME, "\n", Slot.ARGUMENTS), between=(">>>",), texts=("all\n",)),
    open_call=_named_call,
    form=TurnForm(arguments_as_text=True),
    content=Tags("all\n", ""),
)
"""The prompt ends with `>>>`; then a recipient, a newline, and its text: `all` is the user, any other name a tool."""

_INVOKE, _END = "<atem:function_calls>", "</atem:function_calls>"
_HEAD = (f'{_INVOKE}\n<atem:invoke name="', Slot.NAME, '">\n')
_TAIL = f"</atem:invoke>\n{_END}"
_MARKS = ArgumentMarks(key_begin='<atem:parameter name="', key_end='">', value_end="</atem:parameter>\n")
_BODY = CallForm(call=(*_HEAD, Slot.ARGUMENTS, _TAIL), begin=_INVOKE, end=_END, arguments=_MARKS)


def _tagged_call(tools: ToolUse) -> Region:
    return TagRegion("", _BODY, tools.schemas, is_free=tools.enforced is None)


MUSE_GLIMMER: Dialect = RecipientDialect(
    name="muse_glimmer",
    template_words=("<|start|>assistant to=self<|message|>", _INVOKE),
    messages=MessageForm(
        start="<|start|>assistant",
        head="to=",
        body="<|message|>",
        ends=("<|eom|>", "<|eot|>"),
        channels={"user": Channel.CONTENT, "self": Channel.REASONING},
        call_begin=_INVOKE,
    ),
    calls=CallForm(
        call=(" to=", Slot.NAME, f"<|message|>{_HEAD[0]}", *_HEAD[1:], Slot.ARGUMENTS, _TAIL),
        between=("<|eom|><|start|>assistant",),
        texts=(" to=user<|message|>",),
        arguments=_MARKS,
    ),
    open_call=_tagged_call,
    reasoning=Tags(" to=self<|message|>", "<|eom|><|start|>assistant"),
    content=Tags(" to=user<|message|>", ""),
)
"""`to=self` is reasoning, `to=user` content; a message to a tool has a call in tags, which is only text in other messages."""
