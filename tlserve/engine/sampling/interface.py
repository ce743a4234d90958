"""The interface between the engine and a sampler: the rows of a whole step in one call.

Owns the types. There are two samplers, which give the same bits: `sampler` (numpy, the reference) and `native_sampler` (C).
Knows no sequences: a run has all that decides its draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs
import numpy as np
from numpy.typing import NDArray

from tlserve.engine.sampling.logit_edits import LogitEdits
from tlserve.errors import ServerFault
from tlserve.generation import GenerationRequest, TokenLogprob


class NotSampled(ServerFault):
    """No token can be drawn from this row: its logits are not numbers."""

    def __init__(self) -> None:
        super().__init__("the model's output is not a number")


@attrs.frozen
class Draw:
    """A drawn token; `logprob` and `top` (best first) are of the raw distribution, if the request asked for them.

    `mu`, with mirostat: that of the next token.
    """

    token: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()
    mu: float | None = None


@attrs.frozen(eq=False)
class SamplerRun:
    """`rows` rows of one sequence, one after the other; the first draws the token of `index`.

    Row i + 1 counts only if row i draws `drafts[i]`. `masks[i]` has the ids that row i may draw, bit `j % 32` of word `j // 32`
    for id j; None, or no masks at all: every id. `edits` are those of the first row. `given`: nothing is drawn; the row gives
    the log-probability of that token. `mu`, with mirostat: that of the last token; a run with it has one row.
    """

    request: GenerationRequest
    index: int
    rows: int = 1
    drafts: tuple[int, ...] = ()
    masks: tuple[NDArray[np.uint32] | None, ...] = ()
    edits: LogitEdits | None = None
    given: int | None = None
    mu: float | None = None

    def mask(self, row: int) -> NDArray[np.uint32] | None:
        """Return the mask of one row."""
        return self.masks[row] if self.masks else None

    @property
    def logprobs(self) -> int | None:
        """The number of best tokens to report with the token; None: not even its own log-probability."""
        return self.request.logprobs if self.given is None else self.request.prompt_logprobs


@attrs.frozen
class Drawn:
    """The draws of a run, up to the first that was not the draft; `fault` is why the row after them gave none."""

    draws: tuple[Draw, ...]
    fault: ServerFault | None = None


class Sampler(Protocol):
    """Draws tokens; the bits depend neither on the sampler nor on the other runs of the call."""

    def draw(self, logits: NDArray[np.float32], runs: Sequence[SamplerRun]) -> list[Drawn]:
        """Draw for each run from its rows of logits: (rows of all runs, vocabulary_size) float32, C-contiguous."""
