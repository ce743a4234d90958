"""Reads answers in messages that name their recipient: the user, the model itself, or the tool that is called.

    >>>all
    Let me look.>>>get_weather
    {"city": "Paris"}

Owns the headers: where a message begins, and what its recipient says about its text. A region reads the text of a call. A header
whose recipient is neither known nor a tool of the request is content, together with the text before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import attrs

from tlserve.chat.dialect import Channel, ChannelText, Opening, Piece, Tags, ToolUse, marks_in
from tlserve.chat.output.markup_reader import TagFinder
from tlserve.chat.regions.region import Read, Region

_NAME = re.compile(r"[^\s<>{}\"]{0,256}")


@attrs.frozen(kw_only=True)
class MessageForm:
    """How messages are written: `start`, `head`, the recipient, `body`, the text, and one of `ends`.

    The prompt ends with the first `start`. `channels`: recipient -> where its text belongs. `call_begin`: the text with which
    the body of a call begins, and which its region is not given; if it is empty, the region is given the recipient and `body`.
    """

    start: str
    head: str = ""
    body: str
    ends: tuple[str, ...] = ()
    channels: Mapping[str, Channel]
    call_begin: str = ""

    @property
    def marks(self) -> frozenset[str]:
        """Return what may be control tokens in it."""
        return frozenset(mark for text in (self.start, self.head, self.body, *self.ends) for mark in marks_in(text))


@attrs.frozen
class _Header:
    """A header as far as it was read: the recipient, and the text after the header, None while that has not begun."""

    name: str = ""
    rest: str | None = None


def _read_header(form: MessageForm, text: str) -> _Header | None:
    """Return the header with which `text` begins, or None if it cannot become one."""
    begin = text.lstrip() if form.head else text
    if not begin.startswith(form.head):
        return _Header() if form.head.startswith(begin) and len(text) <= len(form.head) + _BLANKS else None
    found = _NAME.match(begin, len(form.head))
    assert found is not None
    tail = begin[found.end() :]
    if tail.startswith(form.body):
        return _Header(found[0], tail[len(form.body) :])
    return _Header(found[0]) if form.body.startswith(tail) else None


class RecipientReader:
    """Reads one answer. `open_call` opens the region of a call; without `tools` there are none.

    `reasoning`: the texts around the reasoning, which `opening` may have begun.
    """

    def __init__(
        self,
        form: MessageForm,
        opening: Opening,
        tools: ToolUse | None,
        open_call: Callable[[ToolUse], Region],
        reasoning: Tags | None = None,
    ) -> None:
        self.ended = False
        self._form = form
        self._tools = tools or ToolUse()
        self._open_call = open_call
        self._finder = TagFinder((form.start, *form.ends))
        self._channel = Channel.CONTENT
        self._is_between = False  # after the end of a message
        self._waiting = ""  # the header so far, or the beginning of a call's body
        self._lead = ""  # the text before `_waiting` that comes back with it
        self._region: Region | None = None
        self._step: Callable[[str], Read] = self._header if opening.begun is None else self._text
        if reasoning is not None and opening.is_inside(reasoning.begin, reasoning.end):
            self._channel, self._step = Channel.REASONING, self._text

    @property
    def held(self) -> int:
        """Return how many characters are not in a piece yet."""
        in_region = 0 if self._region is None else self._region.held
        return len(self._finder.held) + len(self._waiting) + len(self._lead) + in_region

    @property
    def markers(self) -> frozenset[str]:
        """Return the spellings that steer the reader."""
        return self._form.marks

    def feed(self, text: str) -> Sequence[Piece]:
        """Return the pieces that `text` completes."""
        return self._tools.shown(self._read(text))

    def finish(self) -> Sequence[Piece]:
        """Return what was held. The beginning of a header of a known recipient is markup."""
        pieces: list[Piece] = []
        if self._region is not None:
            region, self._region = self._region, None
            gained, rest = region.finish()
            self._step = self._text
            pieces += self._kept(gained) + self._read(rest)
        if self._step == self._header:
            self._waiting = self._lead = ""
        waiting, self._waiting, self._lead = self._lead + self._waiting + self._finder.held, "", ""
        self._finder.held = ""
        return self._tools.shown(pieces + self._content(waiting))

    def _read(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        while text and not self.ended:
            read, text = self._step(text)
            pieces += self._kept(read)
        return pieces

    def _kept(self, gained: Sequence[Piece]) -> list[Piece]:
        """Return the pieces up to the call that ends the answer."""
        kept, is_end = self._tools.until_end(gained)
        self.ended = self.ended or is_end
        return list(kept)

    # --- headers

    def _header(self, text: str) -> Read:
        """Wait for the whole header."""
        self._waiting += text
        header = _read_header(self._form, self._waiting)
        if header is None or not self._is_known(header):
            return self._give_back()
        name, rest = header.name, header.rest
        if rest is None:
            return [], ""
        if name in self._form.channels:
            self._channel, self._is_between, self._step = self._form.channels[name], False, self._text
            self._waiting = self._lead = ""
            return [], rest
        if self._form.call_begin:
            self._lead += self._waiting[: len(self._waiting) - len(rest)]
            self._waiting, self._channel, self._step = "", Channel.CONTENT, self._call
            return [], rest
        return self._open(name + self._form.body + rest)

    def _is_known(self, header: _Header) -> bool:
        """Say whether the recipient is one of the form or a tool, or can become one while the header is incomplete."""
        names = (*self._form.channels, *self._tools.schemas)
        if header.rest is not None:
            return header.name in names
        return any(known.startswith(header.name) for known in names)

    def _give_back(self) -> Read:
        """Return the header as text: it is none."""
        begin, rest = self._lead, self._waiting
        self._waiting = self._lead = ""
        self._step = self._text
        return self._content(begin), rest

    # --- bodies

    def _text(self, text: str) -> Read:
        before, tag, rest = self._finder.feed(text)
        pieces = self._content(before)
        if tag == self._form.start:
            self._lead, self._waiting, self._step = tag, "", self._header
        elif tag:
            self._is_between, self._channel = True, Channel.CONTENT
        return pieces, rest

    def _content(self, text: str) -> list[Piece]:
        if not text or (self._is_between and not text.strip()):
            return []
        self._is_between = False
        return [ChannelText(self._channel, text)]

    def _call(self, text: str) -> Read:
        """Wait for the text with which the body of a call begins."""
        self._waiting += text
        begun, begin = self._waiting.lstrip(), self._form.call_begin
        if begun.startswith(begin):
            return self._open(begun[len(begin) :])
        return ([], "") if begin.startswith(begun) and len(self._waiting) <= len(begin) + _BLANKS else self._give_back()

    def _open(self, rest: str) -> Read:
        self._waiting = self._lead = ""
        self._region, self._step = self._open_call(self._tools), self._in_region
        return [], rest

    def _in_region(self, text: str) -> Read:
        assert self._region is not None
        pieces, rest = self._region.feed(text)
        if self._region.over:
            self._region, self._step = None, self._text
            self._channel, self._is_between = Channel.CONTENT, True
        return pieces, rest


_BLANKS = 16
"""The most blanks before a header or the body of a call."""
