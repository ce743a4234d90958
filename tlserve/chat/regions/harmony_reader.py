"""Reads answers in messages: each has a header with a channel and perhaps a recipient, and then a body.

    <|channel|>analysis<|message|>...<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}<|call|>

The channel `analysis` is reasoning, a message to a function is a call, every other message is content. Source: "OpenAI harmony
response format".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tlserve.chat.dialect import (
    CallArguments,
    CallClosed,
    CallOpened,
    Channel,
    ChannelText,
    Opening,
    Piece,
    Tags,
    ToolUse,
)
from tlserve.chat.output.argument_stream import ArgumentStream
from tlserve.chat.output.json_scan import ValueScanner
from tlserve.chat.output.markup_reader import TagFinder
from tlserve.chat.regions.region import Read

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
ENDS = ("<|end|>", "<|return|>", "<|call|>")
REASONING = Tags(f"{CHANNEL}analysis{MESSAGE}", f"<|end|>{START}assistant")
_CHANNEL = re.compile(r"<\|channel\|>\s*+([a-z]+)")
_FUNCTION = re.compile(r"to=functions\.([^\s<>]{1,256})")
_WORDS = ("assistant", "to=")
_MAX_HEADER_CHARS = 512


class HarmonyReader:
    """Reads one answer; the prompt ends inside the header of its first message."""

    def __init__(self, opening: Opening, tools: ToolUse | None) -> None:
        self.ended = False
        self._tools = tools or ToolUse()
        self._reads_calls = tools is not None
        self._finder = TagFinder((START, CHANNEL, MESSAGE, CONSTRAIN, *ENDS))
        self._header: str | None = "" if opening.begun is None else None
        self._channel = Channel.CONTENT
        if opening.is_inside(REASONING.begin, REASONING.end):
            self._header, self._channel = None, Channel.REASONING
        self._is_between = False  # after the end of a message
        self._scanner: ValueScanner | None = None
        self._stream = ArgumentStream({})

    @property
    def held(self) -> int:
        """Return how many characters are not in a piece yet."""
        return len(self._finder.held) + len(self._header or "")

    @property
    def markers(self) -> frozenset[str]:
        """Return the spellings of the marks."""
        return frozenset({START, CHANNEL, MESSAGE, CONSTRAIN, *ENDS})

    def feed(self, text: str) -> Sequence[Piece]:
        """Return the pieces that `text` completes."""
        pieces: list[Piece] = []
        while text and not self.ended:
            if self._scanner is not None:
                read, text = self._call(self._scanner, text)
                pieces += read
                continue
            before, tag, text = self._finder.feed(text)
            pieces += self._text(before)
            pieces += self._tag(tag) if tag else []
        return self._tools.shown(pieces)

    def finish(self) -> Sequence[Piece]:
        """Return what was held; a header that was cut is markup."""
        held, self._finder.held = self._finder.held, ""
        pieces = self._text(held)
        if self._header is not None and CHANNEL not in self._header:
            header, self._header = self._header, None
            pieces += self._body(header)
        if self._scanner is not None:
            pieces += _arguments(self._stream.finish())
        return self._tools.shown(pieces)

    def _text(self, text: str) -> list[Piece]:
        if not text:
            return []
        if self._header is None:
            return self._body(text)
        self._header += text
        begun = self._header.strip()
        is_header = CHANNEL in begun or any(begun.startswith(word) or word.startswith(begun) for word in _WORDS)
        if is_header and len(begun) <= _MAX_HEADER_CHARS:
            return []
        header, self._header = self._header, None
        return self._body(header)

    def _tag(self, tag: str) -> list[Piece]:
        if tag == MESSAGE and self._header is not None:
            return self._open(self._header)
        if tag in (START, CHANNEL):
            has_recipient = tag == CHANNEL and self._header is not None
            self._header = (self._header or "") + tag if has_recipient else "" if tag == START else tag
            return []
        if tag in ENDS:
            self._header, self._is_between = None, True
            return []
        if self._header is not None:
            self._header += tag
        return []

    def _open(self, header: str) -> list[Piece]:
        """Begin the body after `header`."""
        self._header, self._is_between = None, False
        found, function = _CHANNEL.findall(header), _FUNCTION.search(header)
        self._channel = Channel.REASONING if found[-1:] == ["analysis"] else Channel.CONTENT
        if function is None or not self._reads_calls:
            return []
        self._scanner = ValueScanner()
        self._stream = ArgumentStream(self._tools.schemas.get(function[1], {}))
        return [CallOpened(function[1])]

    def _body(self, text: str) -> list[Piece]:
        if self._is_between:
            self._channel = Channel.CONTENT
            if not text.strip():
                return []
        return [ChannelText(self._channel, text)] if text else []

    def _call(self, scanner: ValueScanner, text: str) -> Read:
        """Read arguments up to their last brace; a mark inside one of their strings is a part of it."""
        read, end = scanner.read(text)
        pieces = _arguments(self._stream.feed(read))
        if scanner.complete or scanner.failed:
            self._scanner, self._is_between = None, scanner.complete
            self._channel = Channel.CONTENT
        if scanner.failed:
            pieces += _arguments(self._stream.finish())
        if scanner.complete:
            pieces.append(CallClosed())
            self.ended = self._tools.ends_by_call
        return pieces, text[end:]


def _arguments(text: str) -> list[Piece]:
    return [CallArguments(text)] if text else []
