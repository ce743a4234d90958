"""What the client of one request has been given, whichever nodes it came from.

Owns the check of every event against what came before, the leaving out of what a client has got already, and the request that
continues it elsewhere. Refuses to know nodes and time. Pure.
"""

from __future__ import annotations

import attrs

from tlserve.generation import GenerationEvent, GenerationRequest, PrefillStarted, Progress, PromptLogprobs, TokenEvent


class BrokenAnswer(Exception):
    """A node said something that cannot follow what was said before: the fault is the node's."""


class Transcript:
    """The answer to one request so far. `ended`: its last token is there; `begun`: the client has got any of it."""

    def __init__(self, request: GenerationRequest) -> None:
        self.request = request
        self.ended = False
        self.begun = False
        self._emitted = list(request.emitted)
        self._told_start = False
        self._told_done = -1
        self._next_prompt_token = 1  # the first has no log-probability

    @property
    def emitted(self) -> tuple[int, ...]:
        """Return the tokens of the answer so far."""
        return tuple(self._emitted)

    def take(self, event: GenerationEvent) -> GenerationEvent | None:
        """Note `event` and return what of it the client has not got yet; raises `BrokenAnswer`."""
        if self.ended:
            raise BrokenAnswer("an event came after the last token")
        if isinstance(event, TokenEvent):
            return self._take_token(event)
        fresh = self._fresh(event)
        self.begun = self.begun or fresh is not None
        return fresh

    def continuation(self) -> GenerationRequest:
        """Return the request that has the rest of the answer, with the bits that it would have had."""
        if not self._has_new_tokens:
            return self.request
        return attrs.evolve(self.request, emitted=self.emitted, prompt_logprobs=None, progress=False)

    @property
    def _has_new_tokens(self) -> bool:
        return len(self._emitted) > len(self.request.emitted)

    def _take_token(self, event: TokenEvent) -> TokenEvent:
        if not self._has_new_tokens:
            self._check_head()
        if event.index != len(self._emitted):
            raise BrokenAnswer(f"token {event.index} came in the place of token {len(self._emitted)}")
        self._emitted.append(event.token)
        self.begun = True
        self.ended = event.finish is not None
        return event

    def _check_head(self) -> None:
        """Raise unless all that comes before the first token has come."""
        if not self._told_start:
            raise BrokenAnswer("a token came before its prefill had started")
        owed = self.request.prompt_logprobs is not None and not self.request.emitted
        if owed and self._next_prompt_token < len(self.request.prompt):
            raise BrokenAnswer(f"a token came in the place of prompt token {self._next_prompt_token}")

    def _fresh(self, event: PrefillStarted | PromptLogprobs | Progress) -> GenerationEvent | None:
        """Return what is new in what comes before the first token: a node that took over says it all again."""
        if self._has_new_tokens:
            return None
        match event:
            case PrefillStarted():
                is_new, self._told_start = not self._told_start, True
                return event if is_new else None
            case PromptLogprobs():
                return self._fresh_prompt_logprobs(event)
            case Progress():
                return self._fresh_progress(event)

    def _fresh_prompt_logprobs(self, event: PromptLogprobs) -> PromptLogprobs | None:
        expected = self._next_prompt_token
        if not self._told_start:
            raise BrokenAnswer("prompt log-probabilities came before the prefill had started")
        if event.start > expected:
            raise BrokenAnswer(f"prompt token {event.start} came in the place of prompt token {expected}")
        rest = event.tokens[expected - event.start :]
        self._next_prompt_token = expected + len(rest)
        return PromptLogprobs(expected, rest) if rest else None

    def _fresh_progress(self, event: Progress) -> Progress | None:
        if event.ahead is not None:
            return None if self._told_start or self._told_done >= 0 else event
        if event.done <= self._told_done:
            return None
        self._told_done = event.done
        return event
