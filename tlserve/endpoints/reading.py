"""Batches of token events -> deltas of one answer, with everything that is counted on the way.

Owns the usage and the log record's view of an answer. Refuses to know how it is read (`tlserve.chat`) and sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from tlserve.chat.output_reader import Delta, OutputReader
from tlserve.endpoints.call import Call
from tlserve.generation import GenerationEvent, PrefillStarted, TokenEvent
from tlserve.openai.documents import Usage


class Reading:
    """The reading of one answer to a prompt of `prompt_tokens`; once it `ended`, no further batch need be fed.

    `echo` is what the answer begins with. The notes of a call that has several answers are their sums, and its times those of
    the first.
    """

    def __init__(self, reader: OutputReader, prompt_tokens: int, call: Call, *, echo: str = "") -> None:
        self._reader = reader
        self._prompt_tokens = prompt_tokens
        self._cached_tokens = 0
        self._call = call
        call.notes.setdefault("prepared_ms", call.elapsed_ms())  # what was read and understood waits from now on
        self._echo = echo

    @property
    def ended(self) -> bool:
        """Say whether the answer is complete."""
        return self._reader.stopped

    def usage(self) -> Usage:
        """Return what the answer cost so far."""
        return Usage(prompt=self._prompt_tokens, completion=self._reader.tokens, cached=self._cached_tokens)

    def feed(self, batch: Sequence[GenerationEvent]) -> list[Delta]:
        """Return what `batch` adds, one delta per token that shows; events behind the end of the answer do not count."""
        before = self._reader.tokens
        deltas = [delta for event in batch if not (delta := self._feed_one(event)).is_empty]
        self._note_sum("completion_tokens", self._reader.tokens - before)
        if deltas and deltas[-1].finish is not None:
            self._call.notes["finish"] = deltas[-1].finish.value
        return deltas

    def _feed_one(self, event: GenerationEvent) -> Delta:
        if isinstance(event, PrefillStarted):
            self._cached_tokens = event.cached_tokens
            self._note_sum("cached_tokens", event.cached_tokens)
            self._call.notes.setdefault("queue_ms", self._call.elapsed_ms())
            return Delta(content=self._echo)
        return self._read(event) if isinstance(event, TokenEvent) else Delta()

    def _read(self, event: TokenEvent) -> Delta:
        if self._reader.tokens == 0:
            self._call.notes.setdefault("first_token_ms", self._call.elapsed_ms())
        return self._reader.feed(event)

    def _note_sum(self, name: str, more: int) -> None:
        self._call.notes[name] = self._call.notes.get(name, 0) + more
