"""Penalties and biases of one sequence, as edits of the few logits that they touch.

Owns which ids are edited and how often each is in the answer, updated token by token, and the arithmetic of an edit. Knows
nothing of masks, filters and draws: an edited row is a row of logits like any other.

An edit, in float64, each operation rounded by itself. If the id is in prompt or answer, a positive logit is divided by
`repetition_penalty`, and any other is multiplied by it. If it is in the answer, `presence_penalty` is subtracted, then
`frequency_penalty` times the number of times. Then the bias is added. The result is rounded to float32 once. `sampler.c`
repeats it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tlserve.generation import GenerationRequest, SamplingParams

EDIT = np.dtype([("id", "=i4"), ("count", "=i4"), ("bias", "=f8")])  # sampler.h: logit_edit

_NOWHERE = -1  # the count of an id that is neither in prompt nor answer
_SPARE = 64


def open_edits(request: GenerationRequest) -> LogitEdits | None:
    """Return the edits of the next token after the prompt and the emitted tokens; None if no logit is ever edited."""
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
    """The edited ids: `entries` is (n,) EDIT, an id at most once; `count` is -1 where there is only a bias."""

    def __init__(self, sampling: SamplingParams) -> None:
        self.sampling = sampling
        self._counts_tokens = _penalises(sampling)
        self._places: dict[int, int] = {}
        self._storage: NDArray[np.void] = np.empty(_SPARE, EDIT)
        self.entries = self._storage[:0]

    def add(self, token: int, count: int, bias: float = 0.0) -> None:
        """Add an id that has no entry yet."""
        size = len(self._places)
        if size == len(self._storage):
            self._storage = np.concatenate([self._storage, np.empty(size, EDIT)])
        self._storage[size] = (token, count, bias)
        self._places[token] = size
        self.entries = self._storage[: size + 1]

    def see(self, token: int, times: int = 1) -> None:
        """Count `times` more of `token` in the answer; 0: it is in the prompt."""
        if not self._counts_tokens:
            return
        place = self._places.get(token)
        if place is None:
            self.add(token, times)
        else:
            counts = self._storage["count"]
            counts[place] = max(0, int(counts[place])) + times

    def after(self, tokens: Sequence[int]) -> LogitEdits:
        """Return the edits with `tokens` added to the answer; these edits do not change."""
        later = LogitEdits(self.sampling)
        later._places = dict(self._places)
        later._storage = self._storage.copy()
        later.entries = later._storage[: len(self.entries)]
        for token in tokens:
            later.see(token)
        return later

    def edit(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return logits: (vocabulary_size,) float32, edited, in a fresh array."""
        ids, counts, sampling = self.entries["id"], self.entries["count"], self.sampling
        edited = logits.copy()
        x = logits[ids].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # the sampler checks for values that are not finite
            repeated = np.where(x > 0, x / sampling.repetition_penalty, x * sampling.repetition_penalty)
            x = np.where(counts >= 0, repeated, x)
            penalised = x - sampling.presence_penalty
            penalised -= sampling.frequency_penalty * counts
            x = np.where(counts > 0, penalised, x)
            edited[ids] = x + self.entries["bias"]
        return edited
