"""Token events -> deltas of an answer, and the whole answer as their fold.

Owns the order of reading: bytes, UTF-8, dialect, stop strings on the content; when an answer ends, and why; and which
log-probabilities go out with which text. Refuses to know JSON and HTTP.

The path of a token:

    token_bytes -> Detokenizer -> DialectReader -> content  -> StopStrings -> Delta.content
                                                -> reasoning, calls        -> Delta.reasoning, Delta.calls

A control token is no text, unless the dialect's reader knows its spelling as a marker.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs

from tlserve.chat.dialect import (
    FROM_NOTHING,
    CallArguments,
    CallClosed,
    CallOpened,
    Channel,
    ChannelText,
    Dialect,
    Opening,
    Piece,
    ToolUse,
)
from tlserve.chat.dialects.plain import PLAIN
from tlserve.chat.logprob_entries import EntryQueue, LogprobEntry, TokenChoice
from tlserve.chat.output.deltas import NOTHING, CallDelta, Delta
from tlserve.generation import Finish, TokenEvent
from tlserve.text.detokenizer import Detokenizer
from tlserve.text.stop_strings import StopStrings
from tlserve.text.tokenizer import Tokenizer


def new_call_id() -> str:
    """Return an id that no other call has: 120 random bits."""
    return "call_" + secrets.token_hex(15)


class OutputReader:
    """Reads the token events of one answer.

    `stopped` says that the answer has ended, by whatever cause: leave the backend's stream. `tokens` counts the events read, the
    stop id among them: what usage calls completion tokens. The text of the first `min_tokens` of them completes no stop string.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        dialect: Dialect = PLAIN,
        *,
        opening: Opening = FROM_NOTHING,
        tools: ToolUse | None = None,
        min_tokens: int = 0,
        include_stop: bool = False,
        new_call_id: Callable[[], str] = new_call_id,
    ) -> None:
        """Raise ClientError for stop strings that are refused; `opening` and `tools` are the dialect's.

        `include_stop`: the stop string that ends the answer is part of it.
        """
        self.tokens = 0
        self.stopped = False
        self._min_tokens = min_tokens
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer()
        self._dialect = dialect.open_reader(opening, tools)
        self._markers = _control_markers(tokenizer, self._dialect.markers)
        self._calls = _CallCounter(new_call_id)
        self._was_named = tools is not None and tools.named
        self._stops = StopStrings(stops, include=include_stop)
        self._entries = EntryQueue()
        self._reasoning = _ReasoningCounter()

    @property
    def reasoning_tokens(self) -> int:
        """Return how many of `tokens` were reasoning, as far as it is known of them."""
        return self._reasoning.tokens

    def feed(self, event: TokenEvent) -> Delta:
        """Return what `event` adds; nothing once the answer has ended.

        A token that ends the answer by its id is no text. A stop string that is complete with the last allowed token is still
        a stop, not a length.
        """
        if self.stopped:
            return NOTHING
        self.tokens += 1
        self._reasoning.waiting += 1
        pieces = [] if event.finish is Finish.STOP else self._read(event)
        if event.finish is not None and not self._stops.stopped and not self._dialect.ended:
            pieces += self._read_tail()
        return self._end(pieces, event.finish)

    def _read(self, event: TokenEvent) -> list[Piece]:
        if event.logprob is not None:
            self._entries.append(self._entry(event, event.logprob))
        spelled = self._markers.get(event.token) if self._markers else None
        text = self._detokenizer.feed(spelled or self._tokenizer.token_bytes(event.token))
        return self._read_text(text)

    def _read_text(self, text: str) -> list[Piece]:
        self._entries.read += len(text)
        return self._visible(self._dialect.feed(text))

    def _read_tail(self) -> list[Piece]:
        pieces = self._read_text(self._detokenizer.finish())
        pieces += self._visible(self._dialect.finish())
        return [*pieces, ChannelText(Channel.CONTENT, self._stops.finish())]

    def _visible(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Pass the content on through the stop strings; what follows a stop is dropped, of every channel."""
        visible: list[Piece] = []
        if pieces:
            self._reasoning.settle(pieces[0])
        stopping = self.tokens > self._min_tokens
        for piece in pieces:
            if isinstance(piece, ChannelText) and piece.channel is Channel.CONTENT:
                visible.append(ChannelText(Channel.CONTENT, self._stops.feed(piece.text, stopping=stopping)))
            elif not self._stops.stopped:
                visible.append(piece)
        return visible

    def _end(self, pieces: list[Piece], finish: Finish | None) -> Delta:
        finish = Finish.STOP if self._stops.stopped or self._dialect.ended else finish
        self.stopped = finish is not None
        if self.stopped:
            self._reasoning.finish()
        content, reasoning = _texts(pieces)
        calls = self._calls.number(pieces)
        return Delta(
            content=content,
            reasoning=reasoning,
            calls=calls,
            logprobs=self._released(),
            finish=finish,
            called=finish is Finish.STOP and self._calls.closed > 0 and not self._was_named,
        )

    def _released(self) -> tuple[LogprobEntry, ...]:
        if not self._entries.are_waiting:
            return ()
        if self.stopped and not self._stops.stopped:
            return self._entries.take_all()
        return self._entries.take(self._dialect.held + self._stops.held)

    def _entry(self, event: TokenEvent, logprob: float) -> LogprobEntry:
        chosen = TokenChoice(event.token, self._tokenizer.token_bytes(event.token), logprob)
        top = (TokenChoice(t.token, self._tokenizer.token_spelling(t.token), t.logprob) for t in event.top)
        return LogprobEntry(chosen, tuple(top), self._entries.read)


def _control_markers(tokenizer: Tokenizer, markers: Iterable[str]) -> Mapping[int, bytes]:
    """Return id -> spelling of the markers that are control tokens, which the tokenizer shows as no text."""
    ids = {marker: tokenizer.special_tokens.get(marker) for marker in markers}
    return {
        token: marker.encode()
        for marker, token in ids.items()
        if token is not None and not tokenizer.token_bytes(token)
    }


def _texts(pieces: list[Piece]) -> tuple[str, str]:
    """Return the content and the reasoning; a step has a piece or two, so that nothing is built for them."""
    content = reasoning = ""
    for piece in pieces:
        if isinstance(piece, ChannelText):
            if piece.channel is Channel.CONTENT:
                content += piece.text
            else:
                reasoning += piece.text
    return content, reasoning


class _CallCounter:
    """Gives calls their index and id; `closed` counts those that are complete."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self.closed = 0
        self._new_id = new_id
        self._opened = 0

    def number(self, pieces: list[Piece]) -> tuple[CallDelta, ...]:
        """Return the deltas of the calls in `pieces`, one for each call that gains something."""
        if len(pieces) == 1 and isinstance(pieces[0], ChannelText):
            return ()
        deltas: list[CallDelta] = []
        for piece in pieces:
            if isinstance(piece, CallOpened):
                deltas.append(CallDelta(self._opened, id=self._new_id(), name=piece.name))
                self._opened += 1
            elif isinstance(piece, CallArguments):
                self._add(deltas, piece.text)
            elif isinstance(piece, CallClosed):
                self.closed += 1
        return tuple(deltas)

    def _add(self, deltas: list[CallDelta], text: str) -> None:
        """Join `text` to the last delta if it is of the open call."""
        index = self._opened - 1
        if deltas and deltas[-1].index == index:
            deltas[-1] = attrs.evolve(deltas[-1], arguments=deltas[-1].arguments + text)
        else:
            deltas.append(CallDelta(index, text))


class _ReasoningCounter:
    """Counts the `tokens` of the reasoning: each belongs where the first piece went that came with it, or next after it.

    So the tag that opens the reasoning is counted with it, and the one that closes it with what follows; what nothing follows
    belongs to the last piece.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.waiting = 0
        self._is_reasoning = False

    def settle(self, piece: Piece) -> None:
        """Let the tokens that wait be where `piece` is."""
        self._is_reasoning = isinstance(piece, ChannelText) and piece.channel is Channel.REASONING
        if self._is_reasoning:
            self.tokens += self.waiting
        self.waiting = 0

    def finish(self) -> None:
        """Let the tokens that wait be where the last piece was."""
        self.tokens += self.waiting if self._is_reasoning else 0
        self.waiting = 0
