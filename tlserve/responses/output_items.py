"""Deltas -> the output items of a response, and the events that build them.

Owns the order of the events of each kind of item. The items of a whole response and the events of a stream are made together, so
that they agree. Does not know responses and sequence numbers. Source: the public reference, streaming events.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from typing import Any

from tlserve.api.answer_blocks import AnswerBlocks, BlockBegun, BlockEnded, BlockGained, BlockKind, Change
from tlserve.chat.logprob_entries import LogprobEntry
from tlserve.chat.output.deltas import Delta
from tlserve.openai.logprobs import chat_logprobs
from tlserve.responses.custom_input import CustomInput
from tlserve.responses.items import Item, item_id

Event = tuple[str, Mapping[str, Any]]
"""The type of an event without `response.`, and its members."""


class OutputItems:
    """The items of one answer as far as its deltas have come: `items` are complete, and at most one more is open.

    `response` is the id of the response, `custom` has the names of the custom tools.
    """

    def __init__(self, response: str, custom: frozenset[str] = frozenset()) -> None:
        self.items: list[Item] = []
        self._response = response
        self._custom = custom
        self._blocks = AnswerBlocks()
        self._open: _OpenItem | None = None

    def feed(self, delta: Delta) -> Iterator[Event]:
        """Yield the events of what a delta adds."""
        for change in self._blocks.feed(delta):
            yield from self._change(change, "completed")

    def finish(self, status: str) -> Iterator[Event]:
        """Yield the events that end the open item, which gets the status."""
        for change in self._blocks.finish():
            yield from self._change(change, status)

    def _change(self, change: Change, status: str) -> Iterator[Event]:
        if isinstance(change, BlockBegun):
            self._open = self._opened(change)
            yield "output_item.added", {"output_index": change.index, "item": self._open.shown("in_progress", "")}
            yield from self._open.begin()
        elif isinstance(change, BlockGained):
            assert self._open is not None
            yield from self._open.gain(change)
        elif isinstance(change, BlockEnded):
            assert self._open is not None
            yield from self._open.end()
            whole = self._open.shown(status, self._open.text)
            self.items.append(whole)
            yield "output_item.done", {"output_index": change.index, "item": whole}
            self._open = None

    def _opened(self, begun: BlockBegun) -> _OpenItem:
        kinds: Mapping[BlockKind, type[_OpenItem]] = {
            BlockKind.THINKING: _Reasoning,
            BlockKind.TEXT: _Message,
            BlockKind.TOOL_USE: _CustomCall if begun.name in self._custom else _FunctionCall,
        }
        return kinds[begun.kind](begun, self._response)


class _OpenItem(abc.ABC):
    """An item that grows; `text` is what it has so far."""

    kind = ""

    def __init__(self, begun: BlockBegun, response: str) -> None:
        self.begun = begun
        self.id = item_id(self.kind, response, begun.index)
        self.text = ""
        self.place = {"item_id": self.id, "output_index": begun.index}

    def begin(self) -> Iterator[Event]:
        """Yield the events after the item was added."""
        yield from ()

    @abc.abstractmethod
    def gain(self, gained: BlockGained) -> Iterator[Event]:
        """Yield the events of more text."""

    def end(self) -> Iterator[Event]:
        """Yield the events before the item is done."""
        yield from ()

    @abc.abstractmethod
    def shown(self, status: str, text: str) -> Item:
        """Return the item with `text`."""

    def head(self, status: str) -> Item:
        """Return the members that every item has."""
        return {"id": self.id, "type": self.kind, "status": status}


class _TextItem(_OpenItem):
    """An item with one part of text."""

    event = ""

    def part(self, text: str) -> Item:
        """Return the part with `text`."""
        return {"type": self.event, "text": text}

    def more(self, _entries: tuple[LogprobEntry, ...]) -> Item:
        """Return further members of the events of the text."""
        return {}

    def begin(self) -> Iterator[Event]:
        self.place["content_index"] = 0
        yield "content_part.added", {**self.place, "part": self.part("")}

    def gain(self, gained: BlockGained) -> Iterator[Event]:
        self.text += gained.text
        yield f"{self.event}.delta", {**self.place, "delta": gained.text, **self.more(gained.logprobs)}

    def end(self) -> Iterator[Event]:
        yield f"{self.event}.done", {**self.place, "text": self.text, **self.more(())}
        yield "content_part.done", {**self.place, "part": self.part(self.text)}


class _Message(_TextItem):
    kind = "message"
    event = "output_text"

    def __init__(self, begun: BlockBegun, response: str) -> None:
        super().__init__(begun, response)
        self._entries: list[Any] = []

    def part(self, text: str) -> Item:
        entries = self._entries if text else []
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(entries)}

    def more(self, entries: tuple[LogprobEntry, ...]) -> Item:
        shown = (chat_logprobs(entries) or {})["content"]
        self._entries += shown
        return {"logprobs": shown}

    def end(self) -> Iterator[Event]:
        yield "output_text.done", {**self.place, "text": self.text, "logprobs": list(self._entries)}
        yield "content_part.done", {**self.place, "part": self.part(self.text)}

    def shown(self, status: str, text: str) -> Item:
        content = [self.part(text)] if text else []
        return {**self.head(status), "role": "assistant", "content": content}


class _Reasoning(_TextItem):
    kind = "reasoning"
    event = "reasoning_text"

    def shown(self, status: str, text: str) -> Item:
        content = [self.part(text)] if text else []
        return {**self.head(status), "summary": [], "content": content}


class _FunctionCall(_OpenItem):
    kind = "function_call"
    event = "function_call_arguments"
    member = "arguments"

    def gain(self, gained: BlockGained) -> Iterator[Event]:
        yield from self._add(gained.text)

    def end(self) -> Iterator[Event]:
        named = {"name": self.begun.name} if self.member == "arguments" else {}
        yield f"{self.event}.done", {**self.place, **named, self.member: self.text}

    def shown(self, status: str, text: str) -> Item:
        named = {"call_id": self.begun.id, "name": self.begun.name, self.member: text}
        return {**self.head(status), **named}

    def _add(self, text: str) -> Iterator[Event]:
        if text:
            self.text += text
            yield f"{self.event}.delta", {**self.place, "delta": text}


class _CustomCall(_FunctionCall):
    """A call of a custom tool: its input is read from the arguments of the function that the model sees."""

    kind = "custom_tool_call"
    event = "custom_tool_call_input"
    member = "input"

    def __init__(self, begun: BlockBegun, response: str) -> None:
        super().__init__(begun, response)
        self._reader = CustomInput()

    def gain(self, gained: BlockGained) -> Iterator[Event]:
        yield from self._add(self._reader.feed(gained.text))
