"""Deltas -> the blocks of an answer, as changes in order, for the APIs whose answers are a list of blocks or items.

Owns when a block begins and ends. A whole answer and a stream of events are both made from these changes, so that they agree.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

import attrs

from tlserve.chat.logprob_entries import LogprobEntry
from tlserve.chat.output.deltas import CallDelta, Delta


class BlockKind(enum.Enum):
    """What a block holds."""

    THINKING = "thinking"
    TEXT = "text"
    TOOL_USE = "tool_use"


@attrs.frozen
class BlockBegun:
    """Block `index` begins; only a call has an id and a name."""

    index: int
    kind: BlockKind
    id: str = ""
    name: str = ""


@attrs.frozen
class BlockGained:
    """Block `index` gains text, or for a call text of its JSON object; `logprobs` are those of the text, if requested."""

    index: int
    kind: BlockKind
    text: str
    logprobs: tuple[LogprobEntry, ...] = ()


@attrs.frozen
class BlockEnded:
    """Block `index` is complete."""

    index: int


Change = BlockBegun | BlockGained | BlockEnded


class AnswerBlocks:
    """The blocks of one answer, as far as its deltas have come: at most one is open, the last one."""

    def __init__(self) -> None:
        self._open: tuple[BlockKind, int] | None = None
        self._count = 0

    def feed(self, delta: Delta) -> Iterator[Change]:
        """Yield the changes that a delta makes."""
        if delta.reasoning:
            yield from self._gain(BlockKind.THINKING, delta.reasoning)
        if delta.content:
            yield from self._gain(BlockKind.TEXT, delta.content, delta.logprobs)
        for call in delta.calls:
            yield from self._call(call)

    def finish(self) -> Iterator[Change]:
        """Yield the end of the open block, if there is one."""
        if self._open is not None:
            self._open = None
            yield BlockEnded(self._count - 1)

    def _gain(self, kind: BlockKind, text: str, logprobs: tuple[LogprobEntry, ...] = ()) -> Iterator[Change]:
        if self._open != (kind, 0):
            yield from self._begin(BlockBegun(self._count, kind), 0)
        yield BlockGained(self._count - 1, kind, text, logprobs)

    def _call(self, call: CallDelta) -> Iterator[Change]:
        if self._open != (BlockKind.TOOL_USE, call.index):
            yield from self._begin(BlockBegun(self._count, BlockKind.TOOL_USE, call.id, call.name), call.index)
        if call.arguments:
            yield BlockGained(self._count - 1, BlockKind.TOOL_USE, call.arguments)

    def _begin(self, begun: BlockBegun, call_index: int) -> Iterator[Change]:
        yield from self.finish()
        self._open = (begun.kind, call_index)
        self._count += 1
        yield attrs.evolve(begun, index=self._count - 1)
