"""The sampler in C: all rows of a step in one call, without the interpreter lock.

Owns the packing of what a row asks for, and the choice between the two samplers at start. Refuses to know the rules: they are
those of `sampler`, which is tried beside it before it is trusted, and draws where the extension was not built.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from types import ModuleType

import numpy as np
from numpy.typing import NDArray

from tlserve.engine import fixed_math
from tlserve.engine.constraint import ConstraintFailed
from tlserve.engine.draws import Draw, Drawn, NotSampled, Run, Sampler
from tlserve.engine.sampler import NumpySampler
from tlserve.generation import GenerationRequest, SamplingParams, TokenLogprob
from tlserve.kernels.native import load_native

_log = logging.getLogger("tlserve.engine")

_ROW = struct.Struct("=3d3Q4q")  # sampler.h: sample_row
_WORD = 2**64 - 1
_NONE = -1
_Row = int | tuple[int, float, tuple[int, ...], tuple[float, ...]]  # sampler_object.c: what a row gives
_FAULTS: dict[int, type[NotSampled | ConstraintFailed]] = {-2: NotSampled, -3: ConstraintFailed}  # sampler.h
_TRIED_SIZE = 3000  # logits of the trial at start: more than two rows of lanes


def make_sampler(vocabulary_size: int, threads: int, *, native: bool = True) -> Sampler:
    """Return the native sampler where it is wished for, built and agrees with numpy; else numpy's."""
    module = load_native() if native else None
    if module is None or not hasattr(module, "Sampler"):
        return NumpySampler()
    if not _agrees(NativeSampler(module, _TRIED_SIZE, threads)):
        _log.warning(
            "the native sampler disagrees with numpy on this machine: numpy draws, with the same answers, slowly"
        )
        return NumpySampler()
    return NativeSampler(module, vocabulary_size, threads)


class NativeSampler:
    """A `draws.Sampler` with `threads` threads of its own, which sleep between calls."""

    def __init__(self, module: ModuleType, vocabulary_size: int, threads: int) -> None:
        self._vocabulary_size = vocabulary_size
        self._native = module.Sampler(vocabulary_size, threads, fixed_math.exp_constants().tobytes())

    def draw(self, logits: NDArray[np.float32], runs: Sequence[Run]) -> list[Drawn]:
        """Draw for each run from its rows of logits: (rows of all runs, vocabulary_size) float32, C-contiguous."""
        starts = [0]
        for run in runs:
            starts.append(starts[-1] + run.rows)
        packed_starts = struct.pack(f"={len(starts)}i", *starts)
        drawn = self._native.draw(_pack(runs, self._vocabulary_size), packed_starts, logits, self._masks(runs))
        return [_read_run(rows) for rows in drawn]

    def _masks(self, runs: Sequence[Run]) -> NDArray[np.uint32] | bytes:
        """Return the masks in order, one below the other, each as long as the vocabulary needs."""
        given = [run.mask for run in runs if run.mask is not None]
        if not given:
            return b""
        masks = np.zeros((len(given), -(-self._vocabulary_size // 32)), np.uint32)
        for row, mask in zip(masks, given, strict=True):
            row[: len(mask)] = mask[: len(row)]
        return masks


def _pack(runs: Sequence[Run], vocabulary_size: int) -> bytes:
    """Return the rows as sampler.h lays them out."""
    rows: list[bytes] = []
    masks = 0
    for run in runs:
        mask = _NONE if run.mask is None else masks
        masks += run.mask is not None
        for row in range(run.rows):
            expected = run.drafts[row] if row < len(run.drafts) else _NONE
            rows.append(_pack_row(run.request, run.index + row, vocabulary_size, mask, expected))
    return b"".join(rows)


def _pack_row(request: GenerationRequest, index: int, vocabulary_size: int, mask: int, expected: int) -> bytes:
    sampling = request.sampling
    logprobs = _NONE if request.logprobs is None else min(request.logprobs, vocabulary_size)
    return _ROW.pack(
        sampling.temperature,
        sampling.top_p,
        sampling.min_p,
        request.seed & _WORD,
        request.choice & _WORD,
        index,
        sampling.top_k,
        logprobs,
        mask,
        expected,
    )


def _read_run(rows: list[_Row]) -> Drawn:
    """Return what was drawn, and why the row after it gave no token, if so."""
    last = rows[-1]
    if isinstance(last, int) and last < 0:
        return Drawn(tuple(map(_read_draw, rows[:-1])), _FAULTS[last]())
    return Drawn(tuple(map(_read_draw, rows)))


def _read_draw(row: _Row) -> Draw:
    if isinstance(row, int):
        return Draw(row)
    token, logprob, ids, logprobs = row
    return Draw(token, logprob, tuple(map(TokenLogprob, ids, logprobs)))


# --- the trial at start --------------------------------------------------------------------------------------------------

_TRIED = (
    SamplingParams(temperature=0.0),
    SamplingParams(),
    SamplingParams(temperature=0.7, top_k=40, top_p=0.9),
    SamplingParams(temperature=1.3, top_p=0.99, min_p=0.01),
)


def _agrees(sampler: NativeSampler) -> bool:
    """Say whether a few rows give the same bits as in numpy."""
    logits = np.random.default_rng(0).normal(0, 3, (len(_TRIED), _TRIED_SIZE)).astype(np.float32)
    requests = [GenerationRequest(prompt=(0,), max_tokens=1, seed=1, sampling=s, logprobs=5) for s in _TRIED]
    runs = [Run(request, index) for index, request in enumerate(requests)]
    return sampler.draw(logits, runs) == NumpySampler().draw(logits, runs)
