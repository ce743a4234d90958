"""The bare engine, without HTTP, threads and text: the time of a step, and of a prefill.

Owns the order of steps. Does not print and does not load models. The prompts are random token ids, so that no cache has them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from time import perf_counter

import attrs

from tlserve.bench.comparison import Spread, spread_of
from tlserve.engine.engine import Engine
from tlserve.errors import OperatorError
from tlserve.generation import GenerationRequest, TokenConstraint, TokenEvent
from tlserve.sampling_params import SamplingParams


@attrs.frozen(kw_only=True)
class EnginePlan:
    """What is measured: a prefill of `prefill_tokens`, then steps of `rows` sequences, each after `prompt_tokens`."""

    prefill_tokens: int = 512
    rows: Sequence[int] = (1, 8, 32)
    prompt_tokens: int = 100
    steps: int = 64
    repeats: int = 3
    seed: int = 0

    @property
    def total(self) -> int:
        """Return the number of measurements."""
        return self.repeats * (1 + len(self.rows))


@attrs.frozen(kw_only=True)
class StepFigures:
    """Steps of `rows` sequences, or a prefill (`rows` is 0), whose `step_ms` is the time of the whole prompt."""

    rows: int
    step_ms: Spread
    tokens_per_s: Spread
    outside_forward: Spread


@attrs.frozen(kw_only=True)
class Work:
    """What every row must do; by default it takes the best token. `constrain` makes a new constraint for each row."""

    sampling: SamplingParams = attrs.field(factory=lambda: SamplingParams(temperature=0.0))
    logprobs: int | None = None
    constrain: Callable[[], TokenConstraint | None] = lambda: None


@attrs.frozen
class Timed:
    """Steps that were timed together, and the part of that time that was the forward pass.

    `usual_s` is the median length of a step, so that a short disturbance of the machine does not change it.
    """

    steps: int
    tokens: int
    seconds: float
    forward_s: float
    usual_s: float


GREEDY = Work()


def measure_engine(
    engine: Engine, vocabulary_size: int, plan: EnginePlan, done: Callable[[], None]
) -> list[StepFigures]:
    """Return the figures of the prefill, then of each number of rows; raises OperatorError if the plan does not fit."""
    _check(engine, plan)
    bare = BareEngine(engine, vocabulary_size, plan.seed)
    timed: dict[int, list[Timed]] = {rows: [] for rows in (0, *plan.rows)}
    bare.time_steps(1, plan.prompt_tokens, 2)  # warm-up
    for _ in range(plan.repeats):
        for rows, found in timed.items():
            found.append(
                bare.time_steps(rows, plan.prompt_tokens, plan.steps)
                if rows
                else bare.time_prefill(plan.prefill_tokens)
            )
            done()
    return [_figures(rows, found) for rows, found in timed.items()]


def _check(engine: Engine, plan: EnginePlan) -> None:
    most = engine.config.max_num_seqs
    if max(plan.rows) > most:
        raise OperatorError(
            f"the engine computes at most {most} sequences at once (max_num_seqs), not {max(plan.rows)}"
        )
    longest = max(plan.prefill_tokens + 1, plan.prompt_tokens + 2 * plan.steps)
    if longest > engine.context_tokens:
        raise OperatorError(f"the context holds {engine.context_tokens} tokens, and {longest} are requested")


class BareEngine:
    """An idle engine whose steps are timed; `seed` decides the prompts."""

    def __init__(self, engine: Engine, vocabulary_size: int, seed: int) -> None:
        self._engine = engine
        self._vocabulary_size = vocabulary_size
        self._source = random.Random(seed)

    def time_prefill(self, tokens: int) -> Timed:
        """Time one prompt of `tokens` up to its first token."""
        self._engine.add_request(self._request(tokens, 1))
        return attrs.evolve(self._time(lambda: not self._engine.has_work), tokens=tokens)

    def time_steps(self, rows: int, prompt_tokens: int, steps: int, work: Work = GREEDY) -> Timed:
        """Time `steps` steps from the moment at which every sequence has its first token, then abort the sequences."""
        engine = self._engine
        room = engine.context_tokens - prompt_tokens
        waiting = {engine.add_request(self._request(prompt_tokens, room, work), work.constrain()) for _ in range(rows)}
        while waiting:
            waiting -= {event.key for event in engine.step() if isinstance(event.what, TokenEvent)}
        left = iter(range(steps))
        timed = self._time(lambda: next(left, None) is None)
        engine.abort_all()
        return timed

    def _time(self, ended: Callable[[], bool]) -> Timed:
        before = self._engine.statistics().forward_seconds_total
        tokens, clock = 0, [perf_counter()]
        while not ended():
            tokens += sum(isinstance(event.what, TokenEvent) for event in self._engine.step())
            clock.append(perf_counter())
        each = sorted(end - began for began, end in pairwise(clock))
        forward_s = self._engine.statistics().forward_seconds_total - before
        return Timed(len(each), tokens, clock[-1] - clock[0], forward_s, each[len(each) // 2])

    def _request(self, tokens: int, max_tokens: int, work: Work = GREEDY) -> GenerationRequest:
        prompt = tuple(self._source.randrange(self._vocabulary_size) for _ in range(tokens))
        return GenerationRequest(
            prompt=prompt, max_tokens=max_tokens, seed=0, sampling=work.sampling, logprobs=work.logprobs
        )


def _figures(rows: int, timed: Sequence[Timed]) -> StepFigures:
    return StepFigures(
        rows=rows,
        step_ms=spread_of([t.seconds * 1000 / (t.steps if rows else 1) for t in timed]),
        tokens_per_s=spread_of([t.tokens / t.seconds for t in timed]),
        outside_forward=spread_of([1 - t.forward_s / t.seconds for t in timed]),
    )
