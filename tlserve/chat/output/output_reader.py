"""Token events -> deltas of an answer.

Owns the order of reading (bytes, UTF-8, dialect, stop strings on the content), when an answer ends and why, and which
log-probabilities are sent with which text. Knows nothing of JSON and HTTP.

The path of a token:

    token_bytes -> Detokenizer -> DialectReader -> content  -> StopStrings -> Delta.content
                                                -> reasoning, calls        -> Delta.reasoning, Delta.calls

A control token has no text, unless the dialect's reader knows its spelling as a marker, or the reader shows them all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from tlserve.chat.dialect import (
    FROM_NOTHING,
    Channel,
    ChannelText,
    Dialect,
    Opening,
    Piece,
    ToolUse,
)
from tlserve.chat.dialects.plain import PLAIN
from tlserve.chat.logprob_entries import EntryQueue, LogprobEntry, TokenChoice
from tlserve.chat.output.call_deltas import CallNumbers, new_call_id
from tlserve.chat.output.deltas import NOTHING, Delta
from tlserve.chat.output.reasoning_tokens import ReasoningTokens
from tlserve.generation import Finish, TokenEvent
from tlserve.text.detokenizer import Detokenizer
from tlserve.text.stop_strings import StopStrings
from tlserve.text.tokenizer import Tokenizer


class OutputReader:
    """Reads the token events of one answer.

    `stopped` says that the answer has ended for any reason: leave the backend's stream. `tokens` is the number of events read,
    including the stop id: the completion tokens of `usage`. The first `min_tokens` tokens cannot complete a stop string.
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
        shows_controls: bool = False,
        new_call_id: Callable[[], str] = new_call_id,
    ) -> None:
        """Raise ClientError for invalid stop strings; `opening` and `tools` go to the dialect.

        `include_stop`: the answer includes the stop string that ends it. `shows_controls`: control tokens are text.
        """
        self.tokens = 0
        self.stopped = False
        self._min_tokens = min_tokens
        self._tokenizer = tokenizer
        self._bytes_of = tokenizer.token_spelling if shows_controls else tokenizer.token_bytes
        self._detokenizer = Detokenizer()
        self._dialect = dialect.open_reader(opening, tools)
        self._markers = _control_markers(tokenizer, self._dialect.markers)
        self._calls = CallNumbers(new_call_id)
        self._was_named = tools is not None and tools.named
        self._stops = StopStrings(stops, include=include_stop)
        self._entries = EntryQueue()
        self._has_entries = False
        self._reasoning = ReasoningTokens()

    @property
    def reasoning_tokens(self) -> int:
        """Return the number of tokens that are known to be reasoning so far."""
        return self._reasoning.count

    def feed(self, event: TokenEvent) -> Delta:
        """Return the delta that `event` adds, NOTHING if there is nothing to send; always so once the answer has ended.

        A token that ends the answer by its id has no text. A stop string that is completed by the last allowed token ends the
        answer by "stop", not by "length".
        """
        if self.stopped:
            return NOTHING
        self.tokens += 1
        self._reasoning.waiting += 1
        pieces = [] if event.finish is Finish.STOP else self._read(event)
        if event.finish is not None and not self._stops.stopped and not self._dialect.ended:
            pieces += self._read_tail()
        return self._delta(pieces, event.finish)

    def _read(self, event: TokenEvent) -> list[Piece]:
        if event.logprob is not None:
            self._has_entries = True
            self._entries.append(self._entry(event, event.logprob))
        spelled = self._markers.get(event.token) if self._markers else None
        text = self._detokenizer.feed(spelled or self._bytes_of(event.token))
        return self._read_text(text)

    def _read_text(self, text: str) -> list[Piece]:
        self._entries.read += len(text)
        return self._visible(self._dialect.feed(text))

    def _read_tail(self) -> list[Piece]:
        pieces = self._read_text(self._detokenizer.finish())
        pieces += self._visible(self._dialect.finish())
        return [*pieces, ChannelText(Channel.CONTENT, self._stops.finish())]

    def _visible(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Pass the content through the stop strings; after a stop, pieces of all channels are dropped."""
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

    def _delta(self, pieces: list[Piece], finish: Finish | None) -> Delta:
        finish = Finish.STOP if self._stops.stopped or self._dialect.ended else finish
        self.stopped = finish is not None
        if self.stopped:
            self._reasoning.finish()
        content, reasoning, others = _texts(pieces)
        calls = self._calls.number(others) if others else ()
        logprobs = self._released() if self._has_entries else ()
        if not (content or finish or reasoning or calls or logprobs):
            return NOTHING
        return Delta(
            content=content,
            reasoning=reasoning,
            calls=calls,
            logprobs=logprobs,
            finish=finish,
            stop_string=self._stops.found,
            called=finish is Finish.STOP and self._calls.closed > 0 and not self._was_named,
        )

    def _released(self) -> tuple[LogprobEntry, ...]:
        if self.stopped and not self._stops.stopped:
            return self._entries.take_all()
        return self._entries.take(self._dialect.held + self._stops.held)

    def _entry(self, event: TokenEvent, logprob: float) -> LogprobEntry:
        chosen = TokenChoice(event.token, self._bytes_of(event.token), logprob)
        top = (TokenChoice(t.token, self._tokenizer.token_spelling(t.token), t.logprob) for t in event.top)
        return LogprobEntry(chosen, tuple(top), self._entries.read)


def _control_markers(tokenizer: Tokenizer, markers: Iterable[str]) -> Mapping[int, bytes]:
    """Return id -> spelling of the markers that are control tokens; the tokenizer gives no text for these."""
    ids = {marker: tokenizer.special_tokens.get(marker) for marker in markers}
    return {
        token: marker.encode()
        for marker, token in ids.items()
        if token is not None and not tokenizer.token_bytes(token)
    }


def _texts(pieces: list[Piece]) -> tuple[str, str, list[Piece]]:
    """Return the content, the reasoning, and the other pieces.

    A step has one or two pieces, so adding strings is cheaper than joining lists.
    """
    content = reasoning = ""
    others: list[Piece] = []
    for piece in pieces:
        if not isinstance(piece, ChannelText):
            others.append(piece)
        elif piece.channel is Channel.CONTENT:
            content += piece.text
        else:
            reasoning += piece.text
    return content, reasoning, others
