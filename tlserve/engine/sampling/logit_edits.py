"""Penalties and biases of one sequence, as edits of the few logits that they touch.

Owns which ids are edited and how often each stands in the answer, kept up token by token, and the arithmetic of an edit. Refuses
to know masks, filters and draws: an edited row is a row of logits like any other.

An edit, in float64, each operation rounded by itself: a positive logit is divided by `repetition_penalty`, another multiplied by
it, where the id stands in prompt or answer; then, where it stands in the answer, less `presence_penalty`, less
`frequency_penalty` times how often; then plus its bias. The result is rounded to float32 once. `sampler.c` repeats it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tlserve.generation import GenerationRequest, SamplingParams

EDIT = np.dtype([("id", "=i4"), ("count", "=i4"), ("bias", "=f8")])  # sampler.h: logit_edit

_NOWHERE = -1  # the count of an id that stands neither in prompt nor answer
_SPARE = 64


def open_edits(request: GenerationRequest) -> LogitEdits | None:
    """Return the edits of the next token after `request`'s prompt and what was emitted; None where no logit is ever edited."""
    sampling = request.sampling
    if not (sampling.logit_bias or _penalises(sampling)):
        return None
    edits = LogitEdits(sampling)
    for token, bias in sampling.logit_bias:
        edits.add(token, _NOWHERE, bias)
    for token in dict.fromkeys(request.prompt) if sampling.repetition_penalty != 1 else ():
        edits.see(token, 0)
    for token, times in Counter(request.emitted).items():
        edits.see(token, times)
    return edits


def _penalises(sampling: SamplingParams) -> bool:
    return sampling.repetition_penalty != 1 or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0


class LogitEdits:
    """The edited ids: `entries` is (n,) EDIT, an id at most once; `count` is -1 where it has none but its bias."""

    def __init__(self, sampling: SamplingParams) -> None:
        self.sampling = sampling
        self._counts_tokens = _penalises(sampling)
        self._places: dict[int, int] = {}
        self._room: NDArray[np.void] = np.empty(_SPARE, EDIT)
        self.entries = self._room[:0]

    def add(self, token: int, count: int, bias: float = 0.0) -> None:
        """Enter an id that is not there yet."""
        size = len(self._places)
        if size == len(self._room):
            self._room = np.concatenate([self._room, np.empty(size, EDIT)])
        self._room[size] = (token, count, bias)
        self._places[token] = size
        self.entries = self._room[: size + 1]

    def see(self, token: int, times: int = 1) -> None:
        """Count `times` more of `token` in the answer; 0: it stands in the prompt."""
        if not self._counts_tokens:
            return
        place = self._places.get(token)
        if place is None:
            self.add(token, times)
        else:
            counts = self._room["count"]
            counts[place] = max(0, int(counts[place])) + times

    def after(self, tokens: Sequence[int]) -> LogitEdits:
        """Return the edits once `tokens` stand in the answer, too; these stay as they are."""
        later = LogitEdits(self.sampling)
        later._places = dict(self._places)
        later._room = self._room.copy()
        later.entries = later._room[: len(self.entries)]
        for token in tokens:
            later.see(token)
        return later

    def edit(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return logits: (vocabulary_size,) float32, edited, in a fresh array."""
        ids, counts, sampling = self.entries["id"], self.entries["count"], self.sampling
        edited = logits.copy()
        x = logits[ids].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # what is no number then is the sampler's to find
            repeated = np.where(x > 0, x / sampling.repetition_penalty, x * sampling.repetition_penalty)
            x = np.where(counts >= 0, repeated, x)
            penalised = x - sampling.presence_penalty
            penalised -= sampling.frequency_penalty * counts
            x = np.where(counts > 0, penalised, x)
            edited[ids] = x + self.entries["bias"]
        return edited
