"""The cost of each kind of sampling: the time of a step over that of a step that takes the best token.

Owns the kinds. They take turns on one engine, so that a slow minute affects all of them. Does not print. Nobody looks at the
tokens: masks and biases have realistic sizes and no meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import attrs
import numpy as np
from numpy.typing import NDArray

from tests.benchmarks.engine.steps import BareEngine, EnginePlan, Work
from tlserve.bench.comparison import Spread, spread_of
from tlserve.generation import CompiledGrammar
from tlserve.sampling_params import SamplingParams

BIASED_IDS = 100
ALLOWED_SHARE = 0.95
LOGPROBS = 5

_ITEM = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
        "count": {"type": "integer", "minimum": 0, "maximum": 1000},
    },
    "required": ["name", "tags", "count"],
    "additionalProperties": False,
}
SCHEMA: Mapping[str, object] = {"type": "array", "minItems": 1000, "items": _ITEM}
"""The schema of an answer. Every string has a bound, which is the most expensive kind; no answer ends within a measurement."""


@attrs.frozen(kw_only=True)
class SamplingCost:
    """One kind of sampling in steps of `rows` sequences; `over_greedy` is the ratio to the greedy step of the same turn."""

    kind: str
    rows: int
    step_ms: Spread
    over_greedy: Spread


class SomeAllowed:
    """A constraint without a grammar: it allows the same ids at every position and accepts any token."""

    def __init__(self, vocabulary_size: int) -> None:
        chosen = np.random.default_rng(0).random(-(-vocabulary_size // 32) * 32) < ALLOWED_SHARE
        self._words = np.packbits(chosen, bitorder="little").view(np.uint32)

    def mask(self) -> NDArray[np.uint32]:
        """Return a mask that allows nearly all ids."""
        return self._words

    def accept(self, token: int) -> None:
        """Accept any token."""

    def rollback(self, count: int) -> None:
        """Do nothing: there is no state."""


def kinds_of_sampling(vocabulary_size: int, schema: CompiledGrammar | None = None) -> dict[str, Work]:
    """Return the kinds that are compared, the greedy step first; `schema` is a grammar whose answers do not end by themselves."""
    bias = tuple((i * vocabulary_size // BIASED_IDS, -1.0) for i in range(min(BIASED_IDS, vocabulary_size)))
    penalties = SamplingParams(temperature=0.0, repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.5)
    held = {} if schema is None else {"a schema": schema.start}
    return {
        "greedy": Work(),
        "penalties": Work(sampling=penalties),
        f"bias of {len(bias)} ids": Work(sampling=SamplingParams(temperature=0.0, logit_bias=bias)),
        "mask": Work(constrain=partial(SomeAllowed, vocabulary_size)),
        **{kind: Work(constrain=start) for kind, start in held.items()},
        f"{LOGPROBS} log-probabilities": Work(logprobs=LOGPROBS),
        "temperature 1": Work(sampling=SamplingParams()),
        "temperature 1, mask": Work(sampling=SamplingParams(), constrain=partial(SomeAllowed, vocabulary_size)),
        **{f"temperature 1, {kind}": Work(sampling=SamplingParams(), constrain=start) for kind, start in held.items()},
    }


def measure_sampling(
    bare: BareEngine, kinds: Mapping[str, Work], plan: EnginePlan, done: Callable[[], None]
) -> list[SamplingCost]:
    """Time `plan.repeats` turns of all kinds at each number of rows, by their median steps, so that a few per cent show."""
    found: dict[tuple[int, str], list[float]] = {(rows, kind): [] for rows in plan.rows for kind in kinds}
    for _ in range(plan.repeats):
        for (rows, kind), each in found.items():
            timed = bare.time_steps(rows, plan.prompt_tokens, plan.steps, kinds[kind])
            each.append(timed.usual_s * 1000)
            done()
    return [_cost(kind, rows, each, found[rows, "greedy"]) for (rows, kind), each in found.items()]


def _cost(kind: str, rows: int, step_ms: Sequence[float], greedy_ms: Sequence[float]) -> SamplingCost:
    own, greedy = spread_of(step_ms), spread_of(greedy_ms)
    each = [mine / best for mine, best in zip(step_ms, greedy_ms, strict=True)]
    ratio = Spread(median=own.median / greedy.median, low=min(each), high=max(each))
    return SamplingCost(kind=kind, rows=rows, step_ms=own, over_greedy=ratio)
