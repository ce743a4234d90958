"""One bench: every load on every target in turn, repeatedly, each run after a warm-up.

Owns the order of the runs (A B A B ...), their prompts, and the engine's step times during a run. Does not print. Within a repeat
both targets get the same prompts; no prompt is sent twice to the same target.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import attrs
import trio

from tlserve.bench.asking import ask
from tlserve.bench.comparison import LoadRun
from tlserve.bench.exact_prompts import count_tokens, exact_prompt
from tlserve.bench.figures import Figures, figures_of
from tlserve.bench.load import Closed, Load, run_load
from tlserve.bench.samples import Failure, Outcome
from tlserve.bench.target import TargetServer
from tlserve.bench.workload import Workload
from tlserve.errors import ServerFault
from tlserve.generation import EngineStatistics

Statistics = Callable[[], EngineStatistics]

_SEEDS_APART = 1_000_003


@attrs.frozen(kw_only=True)
class LoadPlan:
    """What is measured. `rounds`: requests of each client in a closed loop; `requests`: arrivals in an open loop.

    `prefill_words`: before each closed loop, every client sends one prompt of this many words and reads one token; 0: no such
    run. `pause_s`: the rest before every run, in which the other server comes to an idle state. `limit_s`: the limit of a
    request.
    """

    loads: Sequence[Load] = (Closed(1), Closed(8), Closed(32))
    workload: Workload = attrs.field(factory=Workload)
    prefill_words: int = 0
    rounds: int = 2
    requests: int = 64
    repeats: int = 1
    warm_up: int = 1
    seed: int = 0
    limit_s: float = 300.0
    pause_s: float = 0.0

    def count(self, load: Load) -> int:
        """Return the number of requests that a run of `load` measures."""
        return load.streams * self.rounds if isinstance(load, Closed) else self.requests

    def total(self, targets: int) -> int:
        """Return the number of requests of the whole bench, including warm-ups."""
        counts = (self.count(load) + self.warm_up + self.prefills(load) for load in self.loads)
        return targets * self.repeats * sum(counts)

    def prefills(self, load: Load) -> int:
        """Return the number of requests in the prefill run before `load`."""
        return load.streams if self.prefill_words and isinstance(load, Closed) else 0


@attrs.frozen(kw_only=True)
class _Prompts:
    """The prompts of one run, the same for every target."""

    prefills: Sequence[str]
    answers: Sequence[str]


async def run_bench(
    plan: LoadPlan,
    targets: Sequence[TargetServer],
    done: Callable[[], None],
    statistics: Mapping[str, Statistics] | None = None,
) -> list[LoadRun]:
    """Run `plan` against `targets` in turn; `done` is called after each request.

    `statistics` returns the engine's own figures of a target by name, if the engine is in this process. Raises ServerFault if a
    warm-up fails, because then nothing can be measured.
    """
    runs = []
    for repeat, load, seed in _order(plan):
        prompts = await _draw_prompts(plan, seed, load, targets[0])
        for target in targets:
            await trio.sleep(plan.pause_s)
            target_run = _TargetRun(plan, target, done, (statistics or {}).get(target.name))
            runs.append(
                LoadRun(target=target.name, load=load, repeat=repeat, figures=await target_run.run(load, prompts))
            )
    return runs


def _order(plan: LoadPlan) -> Iterator[tuple[int, Load, int]]:
    """Yield (repeat, load, seed of the prompts): all loads once, then all loads again."""
    for repeat in range(plan.repeats):
        for number, load in enumerate(plan.loads):
            yield repeat, load, plan.seed * _SEEDS_APART + repeat * len(plan.loads) + number


async def _draw_prompts(plan: LoadPlan, seed: int, load: Load, counting: TargetServer) -> _Prompts:
    prefills = Workload(prompt_words=plan.prefill_words).prompts(seed, plan.prefills(load))
    count, exact = plan.count(load) + plan.warm_up, plan.workload.prompt_tokens
    if not exact:
        return _Prompts(prefills=prefills, answers=plan.workload.prompts(seed, count))
    source = random.Random(seed)
    answers = [await exact_prompt(source, exact, partial(count_tokens, counting)) for _ in range(count)]
    return _Prompts(prefills=prefills, answers=answers)


@attrs.frozen
class _TargetRun:
    """One target under one load: warm-up, prefills, answers."""

    plan: LoadPlan
    target: TargetServer
    done: Callable[[], None]
    statistics: Statistics | None

    async def run(self, load: Load, prompts: _Prompts) -> Figures:
        workload, warm_up = self.plan.workload, self.plan.warm_up
        _check_warm_up(self.target, await self._send(Closed(1), workload, prompts.answers[:warm_up]))
        prefills = attrs.evolve(workload, shared_words=0, output_tokens=1)
        prefilled = await self._send(load, prefills, prompts.prefills)
        before = self.statistics() if self.statistics else None
        outcomes = await self._send(load, workload, prompts.answers[warm_up:])
        share = outside_forward(before, self.statistics()) if self.statistics and before else None
        return figures_of(outcomes, prefilled=prefilled, outside_forward=share)

    async def _send(self, load: Load, workload: Workload, prompts: Sequence[str]) -> list[Outcome]:
        bodies = [workload.body(self.target.model, prompt) for prompt in prompts]
        return await run_load(load, bodies, self._ask, self.done)

    async def _ask(self, body: bytes, due_s: float) -> Outcome:
        return await ask(self.target, body, limit_s=self.plan.limit_s, due_s=due_s)


def _check_warm_up(target: TargetServer, outcomes: Sequence[Outcome]) -> None:
    failure = next((outcome for outcome in outcomes if isinstance(outcome, Failure)), None)
    if failure is not None:
        raise ServerFault(f"{target.url} did not answer the warm-up ({failure.kind}): {failure.message}")


def outside_forward(before: EngineStatistics, after: EngineStatistics) -> float:
    """Return the share of the engine's step time outside the forward pass."""
    step_s = after.step_seconds_total - before.step_seconds_total
    forward_s = after.forward_seconds_total - before.forward_seconds_total
    return 1 - forward_s / step_s if step_s > 0 else 0.0
