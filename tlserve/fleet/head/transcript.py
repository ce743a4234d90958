"""The events that the client of one request has had, from whatever nodes they came.

Owns the check of every event against the earlier ones, the removal of events that the client has had, and the request that
continues the answer elsewhere. Knows nothing of nodes and time. Pure.
"""

from __future__ import annotations

import attrs

from tlserve.fleet.head.node_claims import BrokenAnswer, check_event, check_finish
from tlserve.generation import GenerationEvent, GenerationRequest, PrefillStarted, Progress, PromptLogprobs, TokenEvent


class Transcript:
    """The answer to one request so far. `ended`: it has its last token; `begun`: the client has had any event."""

    def __init__(self, request: GenerationRequest, vocabulary_size: int) -> None:
        self.request = request
        self._vocabulary_size = vocabulary_size
        self.ended = False
        self.begun = False
        self._emitted = list(request.emitted)
        self._mu = request.mu
        self._has_started = False
        self._most_done = -1
        self._next_prompt_token = 1  # the first has no log-probability

    @property
    def emitted(self) -> tuple[int, ...]:
        """Return the tokens of the answer so far."""
        return tuple(self._emitted)

    def take(self, event: GenerationEvent) -> GenerationEvent | None:
        """Note `event` and return the part that the client has not had yet; raises `BrokenAnswer`."""
        if self.ended:
            raise BrokenAnswer("an event came after the last token")
        check_event(event, self.request, len(self._emitted), self._vocabulary_size)
        if isinstance(event, TokenEvent):
            return self._take_token(event)
        fresh = self._fresh(event)
        self.begun = self.begun or fresh is not None
        return fresh

    def continuation(self) -> GenerationRequest:
        """Return the request for the rest of the answer, with the same bits as if the first node had continued."""
        if not self._has_new_tokens:
            return self.request
        return attrs.evolve(self.request, emitted=self.emitted, mu=self._mu, prompt_logprobs=None, progress=False)

    @property
    def _has_new_tokens(self) -> bool:
        return len(self._emitted) > len(self.request.emitted)

    def _take_token(self, event: TokenEvent) -> TokenEvent:
        if not self._has_new_tokens:
            self._check_head()
        if event.index != len(self._emitted):
            raise BrokenAnswer(f"token {event.index} came instead of token {len(self._emitted)}")
        check_finish(event, self.request)
        self._emitted.append(event.token)
        self._mu = event.mu
        self.begun = True
        self.ended = event.finish is not None
        return event

    def _check_head(self) -> None:
        """Raise unless all events before the first token have come."""
        if not self._has_started:
            raise BrokenAnswer("a token came before its prefill had started")
        owed = self.request.prompt_logprobs is not None and not self.request.emitted
        if owed and self._next_prompt_token < len(self.request.prompt):
            raise BrokenAnswer(f"a token came instead of prompt token {self._next_prompt_token}")

    def _fresh(self, event: PrefillStarted | PromptLogprobs | Progress) -> GenerationEvent | None:
        """Return the new part of an event before the first token: a node that takes over sends them all again."""
        if self._has_new_tokens:
            return None
        match event:
            case PrefillStarted():
                is_new, self._has_started = not self._has_started, True
                return event if is_new else None
            case PromptLogprobs():
                return self._fresh_prompt_logprobs(event)
            case Progress():
                return self._fresh_progress(event)

    def _fresh_prompt_logprobs(self, event: PromptLogprobs) -> PromptLogprobs | None:
        expected = self._next_prompt_token
        if not self._has_started:
            raise BrokenAnswer("prompt log-probabilities came before the prefill had started")
        if event.start > expected:
            raise BrokenAnswer(f"prompt token {event.start} came instead of prompt token {expected}")
        rest = event.tokens[expected - event.start :]
        self._next_prompt_token = expected + len(rest)
        return PromptLogprobs(expected, rest) if rest else None

    def _fresh_progress(self, event: Progress) -> Progress | None:
        if event.ahead is not None:
            return None if self._has_started or self._most_done >= 0 else event
        if event.done <= self._most_done:
            return None
        self._most_done = event.done
        return event
