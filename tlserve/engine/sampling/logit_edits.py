"""Penalties, DRY and biases of one sequence, as edits of the few logits that they touch.

Owns which ids are edited and how often each is in the answer, updated token by token, and the arithmetic of an edit. Knows
nothing of masks, filters and draws: an edited row is a row of logits like any other.

An edit, in float64, each operation rounded by itself. If the id is in prompt or answer, a positive logit is divided by
`repetition_penalty`, and any other is multiplied by it. If it is in the answer, `presence_penalty` is subtracted, then
`frequency_penalty` times the number of times. Then the bias, less what DRY takes, is added. The result is rounded to float32
once. `sampler.c` repeats it. With `penalty_last_n`, the latest tokens of prompt and answer count as the answer, and no others.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from tlserve.engine.sampling.repetition import Repetition
from tlserve.generation import GenerationRequest
from tlserve.sampling_params import SamplingParams

EDIT = np.dtype([("id", "=i4"), ("count", "=i4"), ("bias", "=f8")])  # sampler.h: logit_edit

_NOWHERE = -1  # the count of an id that is neither in prompt nor answer
_SPARE = 64


def open_edits(request: GenerationRequest) -> LogitEdits | None:
    """Return the edits of the next token after the prompt and the emitted tokens; None if no logit is ever edited."""
    sampling = request.sampling
    if not (sampling.logit_bias or sampling.dry or _penalises(sampling)):
        return None
    edits = LogitEdits(sampling)
    for token, bias in sampling.logit_bias:
        edits.add(token, _NOWHERE, bias)
    known = (*request.prompt, *request.emitted) if sampling.dry or sampling.penalty_last_n is not None else ()
    if sampling.dry:
        edits.repetition = Repetition(sampling.dry, known)
    if sampling.penalty_last_n is not None:
        edits.open_window(known, sampling.penalty_last_n)
        return edits
    for token in dict.fromkeys(request.prompt) if sampling.repetition_penalty != 1 else ():
        edits.count(token, 0)
    for token, times in Counter(request.emitted).items():
        edits.count(token, times)
    return edits


def _penalises(sampling: SamplingParams) -> bool:
    changes = sampling.repetition_penalty != 1 or sampling.presence_penalty != 0 or sampling.frequency_penalty != 0
    return changes and sampling.penalty_last_n != 0


class LogitEdits:
    """The edited ids: an id at most once; `count` is -1 where there is only a bias."""

    def __init__(self, sampling: SamplingParams) -> None:
        self.sampling = sampling
        self._counts_tokens = _penalises(sampling)
        self._places: dict[int, int] = {}
        self._storage: NDArray[np.void] = np.empty(_SPARE, EDIT)
        self._counted = self._storage[:0]
        self._window: deque[int] | None = None
        self.repetition: Repetition | None = None

    def open_window(self, known: Sequence[int], size: int) -> None:
        """Count the last `size` of the known tokens, and from now on no more than so many."""
        self._window = deque(islice(reversed(known), size))
        self._window.reverse()
        for token, times in Counter(self._window).items():
            self.count(token, times)

    @property
    def entries(self) -> NDArray[np.void]:
        """The edits of the next token: (n,) EDIT."""
        if self.repetition is None:
            return self._counted
        return _with_losses(self._counted, *self.repetition.penalties())

    def add(self, token: int, count: int, bias: float = 0.0) -> None:
        """Add an id that has no entry yet."""
        size = len(self._places)
        if size == len(self._storage):
            self._storage = np.concatenate([self._storage, np.empty(size, EDIT)])
        self._storage[size] = (token, count, bias)
        self._places[token] = size
        self._counted = self._storage[: size + 1]

    def see(self, token: int) -> None:
        """Note that `token` is the next one of the answer."""
        if self.repetition is not None:
            self.repetition.see(token)
        if self._window is not None:
            self._slide(token)
        else:
            self.count(token, 1)

    def _slide(self, token: int) -> None:
        window = self._window
        if window and len(window) >= (self.sampling.penalty_last_n or 0):
            place = self._places.get(window.popleft())
            if place is not None:
                counts = self._storage["count"]
                counts[place] = counts[place] - 1 or _NOWHERE
        if window is not None and self.sampling.penalty_last_n:
            window.append(token)
            self.count(token, 1)

    def count(self, token: int, times: int) -> None:
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
        """Return the edits with `tokens` added to the answer; these edits do not change.

        Without DRY and `penalty_last_n`: nothing is drafted with them.
        """
        later = LogitEdits(self.sampling)
        later._places = dict(self._places)
        later._storage = self._storage.copy()
        later._counted = later._storage[: len(self._counted)]
        for token in tokens:
            later.see(token)
        return later

    def edit(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return logits: (vocabulary_size,) float32, edited, in a fresh array."""
        entries, sampling = self.entries, self.sampling
        ids, counts = entries["id"], entries["count"]
        edited = logits.copy()
        x = logits[ids].astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):  # the sampler checks for values that are not finite
            repeated = np.where(x > 0, x / sampling.repetition_penalty, x * sampling.repetition_penalty)
            x = np.where(counts >= 0, repeated, x)
            penalised = x - sampling.presence_penalty
            penalised -= sampling.frequency_penalty * counts
            x = np.where(counts > 0, penalised, x)
            edited[ids] = x + entries["bias"]
        return edited


def _with_losses(entries: NDArray[np.void], ids: NDArray[np.int32], lost: NDArray[np.float64]) -> NDArray[np.void]:
    """Return the entries with `lost` taken from the biases of `ids`, which ascend."""
    if not len(ids):
        return entries
    places = np.minimum(np.searchsorted(ids, entries["id"]), len(ids) - 1)
    known = ids[places] == entries["id"]
    changed = entries.copy()
    changed["bias"][known] -= lost[places[known]]
    others = np.ones(len(ids), bool)
    others[places[known]] = False
    added = np.empty(np.count_nonzero(others), EDIT)
    added["id"], added["count"], added["bias"] = ids[others], _NOWHERE, -lost[others]
    return np.concatenate([changed, added])
