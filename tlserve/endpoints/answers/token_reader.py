"""Batches of events -> the parts of one answer, with everything that is counted on the way.

Owns the usage, the prompt's echo and log-probabilities, and an answer's share of its request's figures. Does not know how tokens
become text (`tlserve.chat` does), nor how the parts are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import attrs

from tlserve.api.answers import Usage
from tlserve.chat.logprob_entries import LogprobEntry
from tlserve.chat.output.deltas import NOTHING, Delta
from tlserve.chat.output.output_reader import OutputReader
from tlserve.chat.prompt_entries import PromptEntries
from tlserve.generation import Finish, GenerationEvent, PrefillStarted, Progress, PromptLogprobs, TokenEvent
from tlserve.telemetry.request_log import RequestFigures


@attrs.frozen
class AnswerPart:
    """A delta that shows something, with the ids of its tokens and of the tokens before it that showed nothing.

    `reasoning_tokens` are those of the answer so far.
    """

    delta: Delta
    tokens: tuple[int, ...] = ()
    reasoning_tokens: int = 0


Ready = list[tuple[int, list[AnswerPart]]]
"""What became ready together: the index of a choice, and its new parts. A choice that has only started has none."""


@attrs.frozen
class Echo:
    """The prompt at the start of an answer. `logprobs` None: only its text; k >= 0: also the k likeliest tokens at each place.

    `is_all`: the answer is the prompt alone, and ends before its first token.
    """

    text: str = ""
    logprobs: int | None = None
    is_all: bool = False


NO_ECHO = Echo()


class TokenReader:
    """Reads one answer to a prompt of `prompt_tokens`; once it has `ended`, no further batch need be fed.

    It adds to the `figures` of its request, at the times of `clock`, in milliseconds since the request's arrival.
    `prompt_entries` collect the log-probabilities of the prompt, if they were requested. `by_id`: entries show tokens as ids.
    """

    def __init__(
        self,
        reader: OutputReader,
        prompt_tokens: int,
        figures: RequestFigures,
        clock: Callable[[], float],
        *,
        echo: Echo = NO_ECHO,
        prompt_entries: PromptEntries | None = None,
        by_id: bool = False,
    ) -> None:
        self.prompt_entries = prompt_entries
        self.started = False
        self._reader = reader
        self._prompt_tokens = prompt_tokens
        self._cached_tokens = 0
        self._figures = figures
        self._clock = clock
        self._echo = echo
        self._by_id = by_id
        self._ended = False
        self._unshown: tuple[int, ...] = ()
        self._progress: Progress | None = None

    @property
    def ended(self) -> bool:
        """Say whether the answer is complete."""
        return self._reader.stopped or self._ended

    def usage(self) -> Usage:
        """Return what the answer cost so far."""
        return Usage(
            prompt=self._prompt_tokens,
            completion=self._reader.tokens,
            cached=self._cached_tokens,
            reasoning=self._reader.reasoning_tokens,
        )

    def take_progress(self) -> Progress | None:
        """Return the latest progress towards the first token, once; None if there is none."""
        progress, self._progress = self._progress, None
        return progress

    def feed(self, batch: Sequence[GenerationEvent]) -> list[AnswerPart]:
        """Return what `batch` adds, one part per token that shows; events after the end of the answer do not count."""
        before = self._reader.tokens
        parts: list[AnswerPart] = []
        for event in batch:
            if isinstance(event, TokenEvent):
                self._read(event, parts)
            else:
                self._feed_other(event, parts)
        self._figures.completion_tokens = (self._figures.completion_tokens or 0) + self._reader.tokens - before
        if parts and parts[-1].delta.finish is not None:
            self._figures.finish = parts[-1].delta.finish.value
        return parts

    def _feed_other(self, event: PrefillStarted | Progress | PromptLogprobs, parts: list[AnswerPart]) -> None:
        if isinstance(event, PrefillStarted):
            self._start(event)
            if self._echo.logprobs is None:
                self._add_echo(parts)
        elif isinstance(event, Progress):
            self._progress = event
        elif self.prompt_entries is not None:
            self.prompt_entries.feed(event)

    def _start(self, event: PrefillStarted) -> None:
        self.started = True
        self._cached_tokens = event.cached_tokens
        self._figures.note_start(event.cached_tokens, self._clock())

    def _add_echo(self, parts: list[AnswerPart]) -> None:
        """Begin the answer with its prompt; the log-probabilities of that are complete when the first token comes."""
        echo, self._echo = self._echo, attrs.evolve(self._echo, logprobs=None)
        entries: tuple[LogprobEntry, ...] = ()
        if echo.logprobs is not None and self.prompt_entries is not None:
            entries = self._shown(self.prompt_entries.entries_in(echo.text, echo.logprobs), shift=0)
        if echo.text or entries:
            parts.append(AnswerPart(Delta(content=echo.text, logprobs=entries)))

    def _read(self, event: TokenEvent, parts: list[AnswerPart]) -> None:
        if self._reader.tokens == 0:
            self._figures.note_first_token(self._clock())
        if self.ended:
            return
        if self._echo.logprobs is not None:
            self._add_echo(parts)
        if self._echo.is_all:
            self._ended = True
            parts.append(AnswerPart(Delta(finish=Finish.LENGTH)))
            return
        delta = self._reader.feed(event)
        self._unshown += (event.token,)
        if delta is not NOTHING:
            placed = self._placed(delta) if delta.logprobs else delta
            parts.append(AnswerPart(placed, self._unshown, self._reader.reasoning_tokens))
            self._unshown = ()

    def _placed(self, delta: Delta) -> Delta:
        """Return `delta` with its entries' places counted from the beginning of the echo."""
        shift = len(self._echo.text)
        if not shift and not self._by_id:
            return delta
        return attrs.evolve(delta, logprobs=self._shown(delta.logprobs, shift))

    def _shown(self, entries: Iterable[LogprobEntry], shift: int) -> tuple[LogprobEntry, ...]:
        return tuple(attrs.evolve(entry, offset=entry.offset + shift, by_id=self._by_id) for entry in entries)
