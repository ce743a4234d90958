"""The reader that all dialects share: reasoning first, then content, and regions of calls in it.

Owns the order of the parts, the search for the markers, and the blanks that belong to the markup: newlines around the reasoning,
blanks between content and a call, and after the last call. Refuses to know how a call is written: `regions` does.

Reasoning is opened by the prompt, or by the answer's very first tag; later on such a tag is content. What the answer ends in,
the limit or a stop, leaves everything in its channel: reasoning that was cut is reasoning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from tlserve.chat.dialect import CallClosed, CallOpened, Channel, ChannelText, Opening, Piece, Tags, ToolUse
from tlserve.chat.output.region import Region

_BLANKS = " \t\n\r"
OpenRegion = Callable[[], Region]


THINK = Tags("<think>", "</think>")


class TagFinder:
    """Finds the first of some tags; `held` is the end of the text that may be the beginning of one."""

    def __init__(self, tags: Iterable[str]) -> None:
        self._tags = tuple(tags)
        self.held = ""

    def feed(self, text: str) -> tuple[str, str, str]:
        """Return the text before the first tag, the tag (or ""), and what follows it."""
        text, self.held = self.held + text, ""
        found = [(at, -len(tag), tag) for tag in self._tags if (at := text.find(tag)) >= 0]
        if found:
            at, _, tag = min(found)
            return text[:at], tag, text[at + len(tag) :]
        kept = self._possible(text)
        self.held = text[len(text) - kept :]
        return text[: len(text) - kept], "", ""

    def _possible(self, text: str) -> int:
        """Return the length of the longest end of `text` that begins a tag."""
        longest = min(len(text), max(map(len, self._tags), default=1) - 1)
        ends = (length for length in range(longest, 0, -1) if any(tag.startswith(text[-length:]) for tag in self._tags))
        return next(ends, 0)


class MarkupReader:
    """Reads one answer of a dialect that has these parts.

    `regions`: marker -> what it opens, none where no calls are read. `bare` opens regions that have no marker, at the answer's
    first character, if it is one of `bare`. `dropped` are markers that say nothing by themselves.
    """

    def __init__(
        self,
        *,
        opening: Opening,
        reasoning: Tags | None = None,
        regions: Mapping[str, OpenRegion],
        bare: Mapping[str, OpenRegion] | None = None,
        dropped: Iterable[str] = (),
        tools: ToolUse | None = None,
    ) -> None:
        self.ended = False
        self._tags = reasoning
        self._regions = {**regions, **dict.fromkeys(dropped)}
        self._bare = bare or {}
        self._tools = tools or ToolUse()
        self._finder = TagFinder(self._regions)
        self._end_finder = TagFinder(() if reasoning is None else (reasoning.end,))
        self._region: Region | None = None
        self._blanks = ""
        self._after_call = False
        self._trims = reasoning is not None and opening.is_inside(reasoning.begin, reasoning.end)
        begins = self._start if opening.begun is None else self._content
        self._step = self._reasoning if self._trims else begins

    @property
    def markers(self) -> frozenset[str]:
        """Return every spelling that steers the reader."""
        tags = () if self._tags is None else (self._tags.begin, self._tags.end)
        return frozenset({*tags, *self._regions})

    @property
    def held(self) -> int:
        """Return the number of characters that are in no piece yet."""
        in_region = 0 if self._region is None else self._region.held
        return len(self._blanks) + len(self._finder.held) + len(self._end_finder.held) + in_region

    def feed(self, text: str) -> Sequence[Piece]:
        """Return the pieces that `text` settles."""
        pieces: list[Piece] = []
        self._run(text, pieces)
        return self._given(pieces)

    def finish(self) -> Sequence[Piece]:
        """Return what was held: an unclosed call's arguments, text that is no call, blanks that end the content."""
        pieces: list[Piece] = []
        while self._region is not None and not self.ended:
            region, self._region = self._region, None
            self._step = self._content
            gained: list[Piece] = []
            rest = region.finish(gained)
            self._take(gained, pieces)
            self._run(rest, pieces)
        if self._step == self._reasoning:
            self._give(Channel.REASONING, self._blanks + self._end_finder.held, pieces)
        elif not self.ended:
            self._give_content(self._finder.held, pieces)
            if not self._after_call:
                self._give(Channel.CONTENT, self._blanks, pieces)
        return self._given(pieces)

    def _run(self, text: str, pieces: list[Piece]) -> None:
        while text and not self.ended:
            text = self._step(text, pieces)

    def _given(self, pieces: list[Piece]) -> Sequence[Piece]:
        if not self._tools.hidden:
            return pieces
        return [piece for piece in pieces if isinstance(piece, ChannelText)]

    def _start(self, text: str, _pieces: list[Piece]) -> str:
        """Wait for the first character that is no blank, and for the whole of a tag that may begin with it."""
        text, self._blanks = self._blanks + text, ""
        stripped = text.lstrip(_BLANKS)
        tag = "" if self._tags is None else self._tags.begin
        if not stripped or (tag.startswith(stripped) and stripped != tag):
            self._blanks = text
            return ""
        if tag and stripped.startswith(tag):
            self._step, self._trims = self._reasoning, True
            return stripped[len(tag) :]
        self._step = self._content
        if stripped[0] in self._bare:
            self._open(self._bare[stripped[0]]())
            return stripped
        return text

    def _reasoning(self, text: str, pieces: list[Piece]) -> str:
        before, tag, rest = self._end_finder.feed(text)
        before = self._trim(before)
        body = (self._blanks + before).rstrip("\n")
        self._blanks = (self._blanks + before)[len(body) :]
        self._give(Channel.REASONING, body, pieces)
        if tag:
            self._blanks, self._step, self._trims = "", self._content, True
        return rest

    def _trim(self, text: str) -> str:
        """Drop the newlines that follow a tag."""
        if self._trims:
            text = text.lstrip("\n")
            self._trims = not text
        return text

    def _content(self, text: str, pieces: list[Piece]) -> str:
        before, tag, rest = self._finder.feed(text)
        self._give_content(before, pieces)
        if tag and (open_region := self._regions[tag]) is not None:
            self._open(open_region())
        return rest

    def _give_content(self, text: str, pieces: list[Piece]) -> None:
        text = self._blanks + self._trim(text)
        body = text.rstrip(_BLANKS) if self._regions else text
        self._blanks = text[len(body) :]
        self._after_call = self._after_call and not body
        self._give(Channel.CONTENT, body, pieces)

    def _give(self, channel: Channel, text: str, pieces: list[Piece]) -> None:
        if text:
            pieces.append(ChannelText(channel, text))

    def _open(self, region: Region) -> None:
        self._region, self._step = region, self._in_region

    def _in_region(self, text: str, pieces: list[Piece]) -> str:
        assert self._region is not None
        gained: list[Piece] = []
        rest = self._region.feed(text, gained)
        if self._region.over:
            self._region, self._step = None, self._content
        self._take(gained, pieces)
        return rest

    def _take(self, gained: list[Piece], pieces: list[Piece]) -> None:
        """Pass on what a region gave; its text is content like any other."""
        for piece in gained:
            if isinstance(piece, ChannelText):
                self._give_content(piece.text, pieces)
                continue
            if isinstance(piece, CallOpened):
                self._blanks = ""
            pieces.append(piece)
            if isinstance(piece, CallClosed):
                self._after_call = True
                if not (self._tools.parallel or self._tools.hidden):
                    self.ended = True
                    return
