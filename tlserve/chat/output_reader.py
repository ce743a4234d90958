"""Token events -> deltas of an answer, and the whole answer as their fold.

Owns the order of reading: bytes, UTF-8, dialect, stop strings on the content; when an answer ends, and why; and which
log-probabilities go out with which text. Refuses to know JSON and HTTP.

The path of a token:

    token_bytes -> Detokenizer -> DialectReader -> content  -> StopStrings -> Delta.content
                                                -> reasoning, tool call    -> Delta.reasoning, Delta.tool_call
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

import attrs

from tlserve.chat.dialect import PLAIN, Channel, ChannelText, Dialect
from tlserve.generation import Finish, TokenEvent
from tlserve.text.detokenizer import Detokenizer
from tlserve.text.stop_strings import StopStrings
from tlserve.text.tokenizer import Tokenizer


@attrs.frozen
class TokenChoice:
    """A token that was or might have been drawn: its id, its raw bytes, its natural-log probability."""

    token: int
    bytes: bytes
    logprob: float


@attrs.frozen
class LogprobEntry:
    """One token of the answer and the likeliest at its place. The chosen bytes of all entries, joined, spell the content."""

    chosen: TokenChoice
    top: tuple[TokenChoice, ...] = ()


@attrs.frozen(kw_only=True)
class Delta:
    """What one step adds to an answer; `finish` is set on the last one."""

    content: str = ""
    reasoning: str = ""
    tool_call: str = ""
    logprobs: tuple[LogprobEntry, ...] = ()
    finish: Finish | None = None

    @property
    def is_empty(self) -> bool:
        """Say whether there is nothing to send."""
        return not (self.content or self.finish or self.reasoning or self.tool_call or self.logprobs)


_NOTHING = Delta()


@attrs.frozen(kw_only=True)
class Answer:
    """A whole answer; `finish` is None where the stream was cut."""

    content: str = ""
    reasoning: str = ""
    tool_call: str = ""
    logprobs: tuple[LogprobEntry, ...] = ()
    finish: Finish | None = None


def fold(deltas: Iterable[Delta]) -> Answer:
    """Return the answer that `deltas`, in order, make."""
    parts = list(deltas)
    return Answer(
        content="".join(delta.content for delta in parts),
        reasoning="".join(delta.reasoning for delta in parts),
        tool_call="".join(delta.tool_call for delta in parts),
        logprobs=tuple(entry for delta in parts for entry in delta.logprobs),
        finish=next((delta.finish for delta in reversed(parts) if delta.finish is not None), None),
    )


class OutputReader:
    """Reads the token events of one answer.

    `stopped` says that the answer has ended, by whatever cause: leave the backend's stream. `tokens` counts the events read, the
    stop id among them: what usage calls completion tokens.
    """

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str] = (), dialect: Dialect = PLAIN, *, prompt: str = ""
    ) -> None:
        """Raise ClientError for stop strings that are refused; `prompt` is the rendered text that is answered."""
        self.tokens = 0
        self.stopped = False
        self._tokenizer = tokenizer
        self._detokenizer = Detokenizer()
        self._dialect = dialect.open_reader(prompt)
        self._stops = StopStrings(stops)
        self._entries = _EntryQueue()

    def feed(self, event: TokenEvent) -> Delta:
        """Return what `event` adds; nothing once the answer has ended.

        A token that ends the answer by its id is no text. A stop string that is complete with the last allowed token is still
        a stop, not a length.
        """
        if self.stopped:
            return _NOTHING
        self.tokens += 1
        pieces = [] if event.finish is Finish.STOP else self._read(event)
        if event.finish is not None and not self._stops.stopped:
            pieces += self._read_tail()
        return self._end(pieces, event.finish)

    def _read(self, event: TokenEvent) -> list[ChannelText]:
        if event.logprob is not None:
            self._entries.append(self._entry(event, event.logprob))
        text = self._detokenizer.feed(self._tokenizer.token_bytes(event.token))
        return self._read_text(text)

    def _read_text(self, text: str) -> list[ChannelText]:
        self._entries.read += len(text)
        return self._visible(self._dialect.feed(text))

    def _read_tail(self) -> list[ChannelText]:
        pieces = self._read_text(self._detokenizer.finish())
        pieces += self._visible(self._dialect.finish())
        return [*pieces, ChannelText(Channel.CONTENT, self._stops.finish())]

    def _visible(self, pieces: Sequence[ChannelText]) -> list[ChannelText]:
        """Pass the content on through the stop strings; what follows a stop is dropped, of every channel."""
        visible = []
        for piece in pieces:
            if piece.channel is Channel.CONTENT:
                visible.append(ChannelText(Channel.CONTENT, self._stops.feed(piece.text)))
            elif not self._stops.stopped:
                visible.append(piece)
        return visible

    def _end(self, pieces: list[ChannelText], finish: Finish | None) -> Delta:
        finish = Finish.STOP if self._stops.stopped else finish
        self.stopped = finish is not None
        content, reasoning, tool_call = _by_channel(pieces)
        return Delta(
            content=content,
            reasoning=reasoning,
            tool_call=tool_call,
            logprobs=self._released(),
            finish=finish,
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
        return LogprobEntry(chosen, tuple(top))


def _by_channel(pieces: list[ChannelText]) -> tuple[str, str, str]:
    """Return the content, the reasoning and the tool call; a step has a piece or two, so that nothing is built for them."""
    content = reasoning = tool_call = ""
    for piece in pieces:
        if piece.channel is Channel.CONTENT:
            content += piece.text
        elif piece.channel is Channel.REASONING:
            reasoning += piece.text
        else:
            tool_call += piece.text
    return content, reasoning, tool_call


class _EntryQueue:
    """Entries that wait for their text: each goes out with the character that its first byte belongs to.

    `read` counts the characters that the detokenizer gave so far.
    """

    def __init__(self) -> None:
        self.read = 0
        self._waiting: deque[tuple[int, LogprobEntry]] = deque()

    @property
    def are_waiting(self) -> bool:
        """Say whether any entry waits."""
        return bool(self._waiting)

    def append(self, entry: LogprobEntry) -> None:
        """Add the entry of a token whose bytes come next."""
        self._waiting.append((self.read, entry))

    def take(self, held: int) -> tuple[LogprobEntry, ...]:
        """Return the entries whose first character is out; `held` characters are not."""
        out = []
        while self._waiting and self._waiting[0][0] < self.read - held:
            out.append(self._waiting.popleft()[1])
        return tuple(out)

    def take_all(self) -> tuple[LogprobEntry, ...]:
        """Return all entries: the answer has ended, and nothing is held any more."""
        out = tuple(entry for _, entry in self._waiting)
        self._waiting.clear()
        return out
