"""The sampler in C: all rows of a step in one call, without the interpreter lock.

Owns the packing of the rows' parameters, and the choice between the two samplers at the start. The rules are those of
`sampler`: a trial at the start compares the two, and the numpy sampler draws if the extension was not built or disagrees.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence
from types import ModuleType

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.engine.sampling import fixed_math
from tlserve.engine.sampling.constraint import ConstraintFailed
from tlserve.engine.sampling.interface import Draw, Drawn, NotSampled, Sampler, SamplerRun
from tlserve.engine.sampling.logit_edits import open_edits
from tlserve.engine.sampling.sampler import NumpySampler
from tlserve.engine.sampling.sampler_chain import chain_of, first_mu
from tlserve.generation import GenerationRequest, TokenLogprob
from tlserve.kernels.native import load_native
from tlserve.sampling_params import FILTERS, SamplingParams

_log = logging.getLogger("tlserve.engine")

VERSION = 3  # sampler.h: SAMPLER_VERSION, the format of a call

_ROW = struct.Struct("=3d3Q7q")  # sampler.h: sample_row
_CHAIN = struct.Struct("=12d11q")  # sampler.h: sample_chain
_CHAIN_MU = struct.Struct("=88xd88x")  # the field of it that is written
_EDITS = struct.Struct("=3d")  # sampler.h: edit_list, the penalties
_WORD = 2**64 - 1
_NONE = -1
_Row = int | tuple[int, float, tuple[int, ...], tuple[float, ...]]  # sampler_object.c: the result of a row
_FAULTS: dict[int, type[NotSampled | ConstraintFailed]] = {-2: NotSampled, -3: ConstraintFailed}  # sampler.h
_TRIED_SIZE = 3000  # logits of the trial at the start: more than two rows of lanes


def make_sampler(vocabulary_size: int, threads: int, *, native: bool = True) -> Sampler:
    """Return the native sampler if it is requested, built, and agrees with numpy; otherwise the numpy sampler."""
    module = load_native() if native else None
    if module is None:
        return NumpySampler()
    if _version_of(module) != VERSION:
        _log.warning(
            "the native extension was built for another version, so numpy draws, which is slower; install the package again"
        )
        return NumpySampler()
    if not _agrees(NativeSampler(module, _TRIED_SIZE, threads)):
        _log.warning(
            "the native sampler disagrees with numpy on this machine, so numpy draws: the same answers, but slower"
        )
        return NumpySampler()
    return NativeSampler(module, vocabulary_size, threads)


def _version_of(module: ModuleType) -> int:
    return module.Sampler.version() if hasattr(getattr(module, "Sampler", None), "version") else 0


class NativeSampler:
    """A `Sampler` with `threads` threads of its own, which sleep between calls; vectors have at most `widest_bits`."""

    def __init__(self, module: ModuleType, vocabulary_size: int, threads: int, *, widest_bits: int = 512) -> None:
        self._vocabulary_size = vocabulary_size
        self._native = module.Sampler(vocabulary_size, threads, fixed_math.exp_constants().tobytes(), widest_bits)

    def draw(self, logits: NDArray[np.float32], runs: Sequence[SamplerRun]) -> list[Drawn]:
        """Draw for each run from its rows of logits: (rows of all runs, vocabulary_size) float32, C-contiguous."""
        starts = [0]
        for run in runs:
            starts.append(starts[-1] + run.rows)
        packed_starts = struct.pack(f"={len(starts)}i", *starts)
        rows, chains = _pack(runs, self._vocabulary_size)
        drawn = self._native.draw(rows, packed_starts, logits, self._masks(runs), _pack_edits(runs), chains)
        results = [_read_run(rows) for rows in drawn]
        return _with_mus(results, runs, chains) if chains else results

    def _masks(self, runs: Sequence[SamplerRun]) -> NDArray[np.uint32] | bytes:
        """Return the masks in order, one below the other, each with the length of the vocabulary."""
        given = [mask for run in runs for mask in run.masks if mask is not None]
        if not given:
            return b""
        masks = np.zeros((len(given), -(-self._vocabulary_size // 32)), np.uint32)
        for row, mask in zip(masks, given, strict=True):
            row[: len(mask)] = mask[: len(row)]
        return masks


def _pack(runs: Sequence[SamplerRun], vocabulary_size: int) -> tuple[bytes, bytearray]:
    """Return the rows and the chains in the layouts of sampler.h."""
    rows: list[bytes] = []
    chains = bytearray()
    masks = edits = 0
    for run in runs:
        edited = _NONE if run.edits is None else edits
        edits += run.edits is not None
        chain = _NONE if (packed := _pack_chain(run)) is None else len(chains) // _CHAIN.size
        chains += packed or b""
        for row in range(run.rows):
            unmasked = run.mask(row) is None
            rows.append(_pack_row(run, row, vocabulary_size, _NONE if unmasked else masks, edited, chain))
            masks += not unmasked
    return b"".join(rows), chains


def _pack_row(run: SamplerRun, row: int, vocabulary_size: int, mask: int, edits: int, chain: int = _NONE) -> bytes:
    request, sampling = run.request, run.request.sampling
    return _ROW.pack(
        sampling.temperature,
        sampling.top_p,
        sampling.min_p,
        request.seed & _WORD,
        request.choice & _WORD,
        run.index + row,
        sampling.top_k,
        _NONE if run.logprobs is None else min(run.logprobs, vocabulary_size),
        mask,
        edits,
        run.drafts[row] if row < len(run.drafts) else _NONE,
        _NONE if run.given is None else run.given,
        chain,
    )


def _pack_chain(run: SamplerRun) -> bytes | None:
    """Return the chain of a run, None without one."""
    sampling = run.request.sampling
    steps = () if sampling.mirostat else chain_of(sampling)
    if steps is None or run.given is not None:
        return None
    return _CHAIN.pack(
        sampling.top_n_sigma,
        sampling.temperature,
        sampling.dynatemp_range,
        sampling.dynatemp_exponent,
        sampling.typical_p,
        sampling.top_p,
        sampling.min_p,
        sampling.xtc_probability,
        sampling.xtc_threshold,
        sampling.mirostat_tau,
        sampling.mirostat_eta,
        first_mu(sampling) if run.mu is None else run.mu,
        sampling.top_k,
        sampling.min_keep,
        sampling.mirostat,
        len(steps),
        *(FILTERS.index(step) for step in steps),
        *[0] * (len(FILTERS) - len(steps)),
    )


def _with_mus(results: list[Drawn], runs: Sequence[SamplerRun], chains: bytearray) -> list[Drawn]:
    """Return the results with the mu that mirostat left in the chains, which are in the order of their runs."""
    mus = _CHAIN_MU.iter_unpack(chains)
    found: list[Drawn] = []
    for run, drawn in zip(runs, results, strict=True):
        has_chain = _pack_chain(run) is not None
        (mu,) = next(mus) if has_chain else (None,)
        has_mu = has_chain and run.request.sampling.mirostat and drawn.draws
        found.append(attrs.evolve(drawn, draws=(attrs.evolve(drawn.draws[0], mu=mu),)) if has_mu else drawn)
    return found


def _pack_edits(runs: Sequence[SamplerRun]) -> list[tuple[bytes, NDArray[np.void]]]:
    """Return the penalties and the edited ids of each run that has edits."""
    return [(_pack_penalties(run.request.sampling), run.edits.entries) for run in runs if run.edits is not None]


def _pack_penalties(sampling: SamplingParams) -> bytes:
    return _EDITS.pack(sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)


def _read_run(rows: list[_Row]) -> Drawn:
    """Return the drawn tokens, and why the row after them gave none, if so."""
    last = rows[-1]
    if isinstance(last, int) and last < 0:
        return Drawn(tuple(map(_read_draw, rows[:-1])), _FAULTS[last]())
    return Drawn(tuple(map(_read_draw, rows)))


def _read_draw(row: _Row) -> Draw:
    if isinstance(row, int):
        return Draw(row)
    token, logprob, ids, logprobs = row
    return Draw(token, logprob, tuple(map(TokenLogprob, ids, logprobs)))


# --- the trial at the start --------------------------------------------------------------------------------------------------

_TRIED = (
    SamplingParams(temperature=0.0),
    SamplingParams(),
    SamplingParams(temperature=0.7, top_k=40, top_p=0.9),
    SamplingParams(temperature=1.3, top_p=0.99, min_p=0.01),
    SamplingParams(repetition_penalty=1.3, presence_penalty=0.1, frequency_penalty=0.7, logit_bias=((7, 3.3),)),
    SamplingParams(temperature=0.8, dynatemp_range=0.5, typical_p=0.9, xtc_probability=1.0, samplers=FILTERS[::-1]),
    SamplingParams(top_n_sigma=1.5, min_p=0.9, min_keep=7),
    SamplingParams(mirostat=1, mirostat_tau=3.0),
    SamplingParams(mirostat=2, mirostat_tau=3.0),
)


def _agrees(sampler: NativeSampler) -> bool:
    """Return whether a few rows give the same bits as in numpy, without a mask and with one."""
    logits = np.random.default_rng(0).normal(0, 3, (2 * len(_TRIED), _TRIED_SIZE)).astype(np.float32)
    mask = np.arange(1, 1 + -(-_TRIED_SIZE // 32), dtype=np.uint32) * np.uint32(0x9E3779B1)
    runs = [run for index, sampling in enumerate(_TRIED) for run in _tried_runs(index, sampling, mask)]
    return sampler.draw(logits, runs) == NumpySampler().draw(logits, runs)


def _tried_runs(index: int, sampling: SamplingParams, mask: NDArray[np.uint32]) -> tuple[SamplerRun, SamplerRun]:
    request = GenerationRequest(
        prompt=(0, 1, 2), emitted=(1, 3, 3), max_tokens=9, seed=1, sampling=sampling, logprobs=5
    )
    edits = open_edits(request)
    return SamplerRun(request, index, edits=edits), SamplerRun(request, index, masks=(mask,), edits=edits)
