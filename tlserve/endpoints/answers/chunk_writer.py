"""The parts of an answer -> the events of a stream of chunks, as the chat and completions of the public API have them.

Owns the order: the roles when the first prefill has started, the pieces, the usage if it was requested, `[DONE]`; and the
progress comments before the first token. Does not know when the events are sent.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence

import attrs

from tlserve.api.answers import NO_EXTRAS, AnswerHead, Extras, Usage
from tlserve.api.errors import ErrorAnswer
from tlserve.endpoints.answers.answer_plan import Choice, StartedAnswer
from tlserve.endpoints.answers.token_reader import AnswerPart, Ready
from tlserve.generation import Progress
from tlserve.http import sse
from tlserve.openai.chunks import Chunks
from tlserve.openai.errors import error_document


class StreamState(enum.Enum):
    """How far a stream is."""

    QUEUED = "queued"
    OPENED = "opened"
    ENDED = "ended"


Write = Callable[[Ready], bytes]


class ChunkWriter:
    """Writes the events of one answer: `write` for what became ready, `end` after the last of it.

    The table holds the writers of each state; `_open` goes from QUEUED to OPENED. Writing after the end is an error (KeyError).
    """

    def __init__(self, started: StartedAnswer, chunks: Callable[[AnswerHead, bool], Chunks]) -> None:
        """Take the answer under way, and what makes its chunks from its head and whether the usage was requested."""
        self.state = StreamState.QUEUED
        self._started = started
        options = started.task.options
        self._chunks = chunks(started.head, options.include_usage)
        self._sent = _Sent(started)
        progress = ProgressWriter(started.choices[0], self._sent) if started.task.headers.progress else None
        counts = options.return_token_ids or options.continuous_usage or progress is not None
        pieces: Write = self._counted_pieces if counts else self._plain_pieces
        first: Sequence[Write] = () if progress is None else (progress.write,)
        self._table: Mapping[StreamState, Sequence[Write]] = {
            StreamState.QUEUED: (*first, self._open, pieces),
            StreamState.OPENED: (*first, pieces),
        }

    def write(self, ready: Ready) -> bytes:
        """Return the events of what became ready together."""
        return b"".join([write(ready) for write in self._table[self.state]])

    def end(self) -> bytes:
        """Return the events after the last piece."""
        self.state = StreamState.ENDED
        if not self._started.task.options.include_usage:
            return sse.DONE
        return sse.event(self._chunks.usage(self._started.usage())) + sse.DONE

    def fault(self, answer: ErrorAnswer) -> bytes:
        """Return the events that end the stream with an error."""
        self.state = StreamState.ENDED
        return sse.event(error_document(answer)) + sse.DONE

    def _open(self, _ready: Ready) -> bytes:
        """Return the chunks that name the roles, when the first prefill has started."""
        if not any(choice.reader.started for choice in self._started.choices):
            return b""
        self.state = StreamState.OPENED
        openings = map(self._opening, range(len(self._started.choices)))
        return b"".join(sse.event(opening) for opening in openings if opening is not None)

    def _opening(self, index: int) -> bytes | None:
        extras = self._started.prompt_extras(index) if index == 0 else NO_EXTRAS
        opening = self._chunks.opening(index, extras, self._sent.usage())
        if opening is not None:
            self._sent.begun.add(index)
        return opening

    def _plain_pieces(self, ready: Ready) -> bytes:
        piece = self._chunks.piece
        return b"".join([sse.event(piece(part.delta, index)) for index, parts in ready for part in parts])

    def _counted_pieces(self, ready: Ready) -> bytes:
        return b"".join([sse.event(self._counted_piece(index, part)) for index, parts in ready for part in parts])

    def _counted_piece(self, index: int, part: AnswerPart) -> bytes:
        extras = self._sent.extras(index, part)
        self._sent.add(index, part)
        return self._chunks.piece(part.delta, index, extras, self._sent.usage())


class ProgressWriter:
    """Writes the progress of the first choice as comments, up to the first token that was sent."""

    def __init__(self, choice: Choice, sent: _Sent) -> None:
        self._reader = choice.reader
        self._prompt_tokens = len(choice.request.prompt)
        self._sent = sent

    def write(self, ready: Ready) -> bytes:
        """Return the comment of the latest progress, nothing if a token says more."""
        news = self._reader.take_progress()
        if news is None or self._sent.tokens or any(part.tokens for _, parts in ready for part in parts):
            return b""
        return sse.comment(progress_words(news, self._prompt_tokens))


def progress_words(news: Progress, prompt_tokens: int) -> str:
    """Return the text of a progress comment: the requests that wait before this one, or how much of its prompt is computed."""
    if news.ahead is not None:
        return f"progress queue={news.ahead}"
    return f"progress prefill={news.done}/{prompt_tokens}"


class _Sent:
    """What was sent of each choice: chunks report that, not what is only ready. `begun` are the choices with a chunk out."""

    def __init__(self, started: StartedAnswer) -> None:
        self._started = started
        self._options = started.task.options
        self._reasoning = [0] * len(started.choices)
        self.begun: set[int] = set()
        self.tokens = 0

    def add(self, index: int, part: AnswerPart) -> None:
        """Count a part."""
        self.begun.add(index)
        self.tokens += len(part.tokens)
        self._reasoning[index] = part.reasoning_tokens

    def extras(self, index: int, part: AnswerPart) -> Extras:
        """Return the extras of a part's chunk; the first chunk of a choice has the prompt's ids."""
        if not self._options.return_token_ids:
            return NO_EXTRAS
        own = NO_EXTRAS if index in self.begun else self._started.prompt_extras(index)
        return attrs.evolve(own, token_ids=part.tokens)

    def usage(self) -> Usage | None:
        """Return the usage up to what was sent last, if the request asked for it in each chunk."""
        if not self._options.continuous_usage:
            return None
        return attrs.evolve(self._started.usage(), completion=self.tokens, reasoning=sum(self._reasoning))
