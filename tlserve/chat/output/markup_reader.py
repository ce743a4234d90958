"""The reader that all dialects with markup share: first reasoning, then content, and regions of calls in the content.

Owns the order of the parts, the search for markers, and the blanks that belong to the markup: newlines around the reasoning,
blanks between content and a call, and blanks after the last call. Does not know how a call is written; the regions do.

The prompt or the first tag of the answer opens the reasoning, or the tag that ends it comes first and it is empty; later in the
answer that tag is content. An answer that ends by its limit or a stop leaves its text in the current channel: reasoning that was
cut is reasoning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from tlserve.chat.dialect import CallClosed, CallOpened, Channel, ChannelText, Opening, Piece, Tags, ToolUse, marks_in
from tlserve.chat.regions.region import Read, Region

_BLANKS = " \t\n\r"
OpenRegion = Callable[[], Region]


THINK = Tags("<think>", "</think>")


class TagFinder:
    """Finds the first of some tags; `held` is the end of the text if a tag may begin with it."""

    def __init__(self, tags: Iterable[str]) -> None:
        self._tags = tuple(tags)
        self._first_characters = frozenset(tag[0] for tag in self._tags)
        self.held = ""

    def feed(self, text: str) -> tuple[str, str, str]:
        """Return the text before the first tag, the tag (or ""), and the text after it."""
        if not self.held and self._first_characters.isdisjoint(text):
            return text, "", ""
        text, self.held = self.held + text, ""
        found = [(at, -len(tag), tag) for tag in self._tags if (at := text.find(tag)) >= 0]
        if found:
            at, _, tag = min(found)
            return text[:at], tag, text[at + len(tag) :]
        kept = self._possible(text)
        self.held = text[len(text) - kept :]
        return text[: len(text) - kept], "", ""

    def _possible(self, text: str) -> int:
        """Return the length of the longest end of `text` with which a tag may begin."""
        longest = min(len(text), max(map(len, self._tags), default=1) - 1)
        ends = (length for length in range(longest, 0, -1) if any(tag.startswith(text[-length:]) for tag in self._tags))
        return next(ends, 0)


class LineStarts:
    """Says of a text that comes in pieces whether its end is the beginning of a line, outside of fenced code."""

    def __init__(self, *, is_empty: bool = True) -> None:
        self._is_empty = is_empty
        self._ticks = 0
        self._is_fenced = False

    def feed(self, text: str) -> None:
        """Read the next piece."""
        self._is_empty = self._is_empty and not text.strip()
        if "`" not in text:
            self._ticks = 0 if text else self._ticks
            return
        for character in text:
            self._ticks = self._ticks + 1 if character == "`" else 0
            self._is_fenced ^= self._ticks == len("```")

    def is_start(self, blanks: str) -> bool:
        """Say whether a line begins after the text and `blanks`."""
        return not self._is_fenced and (self._is_empty or "\n" in blanks)


class MarkupReader:
    """Reads one answer of a dialect that has these parts.

    `short_begin`: a text that also begins the reasoning, at the start of the answer. `ends`: further tags that end it. `regions`:
    marker -> what opens its region; empty if no calls are read. `in_reasoning`: the same inside the reasoning, which a call then
    ends. `bare` opens regions that have no marker: at the first character of the answer, if it is a key of `bare`; if `at_lines`,
    also at that character at the beginning of a later line. `dropped` are markers that mean nothing by themselves. `inside`:
    further spellings that steer the regions.
    """

    def __init__(
        self,
        *,
        opening: Opening,
        reasoning: Tags | None = None,
        short_begin: str = "",
        ends: tuple[str, ...] = (),
        regions: Mapping[str, OpenRegion],
        in_reasoning: Mapping[str, OpenRegion | None] | None = None,
        bare: Mapping[str, OpenRegion] | None = None,
        at_lines: Mapping[str, OpenRegion] | None = None,
        dropped: Iterable[str] = (),
        inside: frozenset[str] = frozenset(),
        tools: ToolUse | None = None,
    ) -> None:
        self.ended = False
        self._tags = None if reasoning is None else Tags(reasoning.begin.strip(), reasoning.end.strip())
        self._short_begin = short_begin
        self._regions = {**regions, **(at_lines or {}), **dict.fromkeys(dropped)}
        self._at_lines = frozenset(at_lines or ())
        self._lines = LineStarts(is_empty=opening.begun is None)
        self._in_reasoning = in_reasoning or {}
        self._bare = bare or {}
        self._inside = inside
        self._tools = tools or ToolUse()
        self._finder = TagFinder(self._regions)
        self._end_finder = TagFinder(() if reasoning is None else (reasoning.end.strip(), *ends, *self._in_reasoning))
        self._region: Region | None = None
        self._blanks = ""  # only ever appended to: to look at all of them again would cost more with each token
        self._begun = ""  # what may be the beginning of a tag at the start of the answer
        self._after_call = False
        self._reasons = False  # whether the region was opened inside the reasoning
        self._trims = reasoning is not None and opening.is_inside(reasoning.begin, reasoning.end)
        begins = self._start if opening.begun is None else self._content
        self._step: Callable[[str], Read] = self._reasoning if self._trims else begins

    @property
    def markers(self) -> frozenset[str]:
        """Return every spelling that steers the reader."""
        tags = () if self._tags is None else (self._tags.begin, self._tags.end)
        texts = (*tags, *self._regions)
        return self._inside.union(texts, *map(marks_in, texts))

    @property
    def held(self) -> int:
        """Return the number of characters that are not in a piece yet."""
        in_region = 0 if self._region is None else self._region.held
        return len(self._blanks) + len(self._begun) + len(self._finder.held) + len(self._end_finder.held) + in_region

    def feed(self, text: str) -> Sequence[Piece]:
        """Return the pieces that `text` completes."""
        return self._tools.shown(self._read(text))

    def finish(self) -> Sequence[Piece]:
        """Return what was held: arguments of an open call, text that is not a call, blanks that end the content."""
        pieces: list[Piece] = []
        while self._region is not None and not self.ended:
            region, self._region = self._region, None
            self._step = self._reasoning if self._reasons else self._content
            gained, rest = region.finish()
            pieces += self._of_region(gained)
            self._reasons = False
            pieces += self._read(rest)
        return self._tools.shown(pieces + self._held_text())

    def _read(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        while text and not self.ended:
            read, text = self._step(text)
            pieces += read
        return pieces

    def _start(self, text: str) -> Read:
        """Wait for the first character that is not a blank, and for the whole of a tag that may begin with it."""
        text = self._begun + text
        stripped = text.lstrip(_BLANKS)
        self._blanks += text[: len(text) - len(stripped)]
        tag, end = ("", "") if self._tags is None else (self._tags.begin, self._tags.end)
        if not stripped or any(own.startswith(stripped) and stripped != own for own in (tag, end)):
            self._begun = stripped
            return [], ""
        text, self._blanks, self._begun = self._blanks + stripped, "", ""
        begin = next((own for own in (tag, self._short_begin) if own and stripped.startswith(own)), "")
        if begin:
            self._step, self._trims = self._reasoning, True
            return [], stripped[len(begin) :]
        self._step = self._content
        if end and stripped.startswith(end):  # a reasoning that is empty
            self._trims = True
            return [], stripped[len(end) :]
        if stripped[0] in self._bare:
            self._open(self._bare[stripped[0]]())
            return [], stripped
        return [], text

    def _reasoning(self, text: str) -> Read:
        before, tag, rest = self._end_finder.feed(text)
        pieces = self._reasoning_pieces(before)
        if tag in self._in_reasoning:
            if (open_region := self._in_reasoning[tag]) is not None:
                self._reasons = True
                self._open(open_region())
        elif tag:
            self._blanks, self._step, self._trims = "", self._content, True
        return pieces, rest

    def _reasoning_pieces(self, text: str) -> list[Piece]:
        text = self._trim(text)
        return _texts(Channel.REASONING, self._with_blanks(text, text.rstrip("\n")))

    def _with_blanks(self, text: str, body: str) -> str:
        """Return `body`, the beginning of `text`, after the blanks that were held; hold those that follow it."""
        if not body:
            self._blanks += text
            return ""
        held, self._blanks = self._blanks, text[len(body) :]
        return held + body

    def _trim(self, text: str) -> str:
        """Drop the newlines that follow a tag."""
        if self._trims:
            text = text.lstrip("\n")
            self._trims = not text
        return text

    def _content(self, text: str) -> Read:
        before, tag, rest = self._finder.feed(text)
        pieces = self._content_pieces(before)
        if tag in self._at_lines and not self._lines.is_start(self._blanks):
            pieces += self._content_pieces(tag)
        elif tag and (open_region := self._regions[tag]) is not None:
            self._open(open_region())
        return pieces, rest

    def _content_pieces(self, text: str) -> list[Piece]:
        """Return `text` as content; blanks at its end wait, because they may belong to the markup of a call."""
        text = self._trim(text)
        body = self._with_blanks(text, text.rstrip(_BLANKS) if self._regions else text)
        self._after_call = self._after_call and not body
        if self._at_lines:
            self._lines.feed(body)
        return _texts(Channel.CONTENT, body)

    def _held_text(self) -> list[Piece]:
        """Return the text that is held outside of regions, because nothing follows."""
        if self._step == self._reasoning:
            return _texts(Channel.REASONING, self._blanks + self._end_finder.held)
        if self.ended:
            return []
        pieces = self._content_pieces(self._begun + self._finder.held)
        return pieces if self._after_call else pieces + _texts(Channel.CONTENT, self._blanks)

    def _open(self, region: Region) -> None:
        self._region, self._step = region, self._in_region

    def _in_region(self, text: str) -> Read:
        assert self._region is not None
        gained, rest = self._region.feed(text)
        is_over = self._region.over
        pieces = self._of_region(gained)
        if is_over:
            self._region, self._step = None, self._reasoning if self._reasons else self._content
            self._reasons = False
        return pieces, rest

    def _of_region(self, gained: Sequence[Piece]) -> list[Piece]:
        """Return the pieces of a region, up to the call that ends the answer; its text is content like any other."""
        until_end, self.ended = self._tools.until_end(gained)
        pieces: list[Piece] = []
        for piece in until_end:
            if isinstance(piece, ChannelText):
                pieces += self._reasoning_pieces(piece.text) if self._reasons else self._content_pieces(piece.text)
                continue
            if isinstance(piece, CallOpened):
                self._blanks, self._reasons = "", False
            self._after_call = self._after_call or isinstance(piece, CallClosed)
            pieces.append(piece)
        return pieces


def _texts(channel: Channel, text: str) -> list[Piece]:
    """Return `text` as a piece; an empty text gives no piece."""
    return [ChannelText(channel, text)] if text else []
